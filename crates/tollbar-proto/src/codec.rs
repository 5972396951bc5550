//! How messages become bytes, as tonic asks for it: with small buffers, and with the blame where it
//! belongs.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{self, BufferSettings, DecodeBuf, EncodeBuf};

/// A check is a few hundred bytes; what is longer grows.
const BUFFER_BYTES: usize = 1_024;
/// What is gathered of a stream before it is sent.
const YIELD_BYTES: usize = 32 * 1_024;

/// Protocol buffers by prost.
#[derive(Debug, Clone, Copy)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

/// Writes messages.
#[derive(Debug, Clone, Copy)]
pub struct Encoder<T>(PhantomData<T>);

/// Reads messages.
#[derive(Debug, Clone, Copy)]
pub struct Decoder<U>(PhantomData<U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Encoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Encoder<T> {
        Encoder(PhantomData)
    }

    fn decoder(&mut self) -> Decoder<U> {
        Decoder(PhantomData)
    }
}

impl<T: Message> codec::Encoder for Encoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(into).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

impl<U: Message + Default> codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    /// Whoever sent what cannot be read made the mistake: tonic's own codec says `INTERNAL`, which
    /// reads as if it were the reader's.
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(from).map(Some).map_err(|error| {
            Status::invalid_argument(format!(
                "the message cannot be read: {error}; send what tollbar/v1/tollbar.proto describes"
            ))
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}
