//! Long bodies: memory must not grow with them. Nothing else runs in this process meanwhile.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{AnyBody, Client, open_gateway, rss_kib, upstream};
use futures_util::StreamExt;
use http::{Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use tokio::time::timeout;

const CHUNK_BYTES: usize = 64 * 1024;
const MIB: usize = 1 << 20;

/// What the buffers of two windows of HTTP/2 and of all sockets may come to, in this one process that
/// is client, gateway and upstream.
const GROWTH_KIB_MAX: u64 = 16 * 1024;

/// For a gigabyte on a machine that has other things to do.
const LONG: Duration = Duration::from_mins(5);

/// So many bytes, each chunk with another value.
fn bytes(count: usize) -> AnyBody {
    let chunks = (0..count / CHUNK_BYTES).map(|at| Bytes::from(vec![at as u8; CHUNK_BYTES]));
    let frames = futures_util::stream::iter(chunks).map(|chunk| Ok(Frame::data(chunk)));
    BodyExt::boxed(StreamBody::new(frames))
}

/// How many bytes come, with a look at each of them, and how high memory rises.
async fn drain(mut body: Incoming) -> (usize, u64) {
    let (mut count, mut rss_kib_max) = (0, 0);
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        for byte in &data {
            assert_eq!(*byte, (count / CHUNK_BYTES) as u8, "at {count}");
            count += 1;
        }
        if count % MIB < data.len() {
            rss_kib_max = rss_kib_max.max(rss_kib());
        }
    }
    (count, rss_kib_max)
}

/// The upstream sends back what it is sent, as it comes.
async fn streamed_both_ways(mib: usize) {
    let upstream = upstream(|request| async {
        Response::new(request.into_body().map_err(Into::into).boxed())
    })
    .await;
    let gateway = open_gateway(upstream).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let mut client = Client::connect(gateway, version).await;
        let warm = Request::post("/").body(bytes(MIB)).unwrap();
        drain(client.send(warm).await.into_body()).await;
        let before = rss_kib();
        let request = Request::post("/").body(bytes(mib * MIB)).unwrap();
        let response = client.send(request).await;
        let drained = timeout(LONG, drain(response.into_body())).await.unwrap();
        let (count, rss_kib_max) = drained;
        assert_eq!(count, mib * MIB);
        let growth_kib = rss_kib_max.saturating_sub(before);
        println!("{mib} MiB over {version:?}: memory rose by {growth_kib} KiB");
        assert!(growth_kib < GROWTH_KIB_MAX, "{version:?}: {growth_kib} KiB more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_mib_pass_both_ways_without_being_gathered() {
    streamed_both_ways(64).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: a gigabyte, twice each way"]
async fn a_gigabyte_passes_both_ways_without_being_gathered() {
    streamed_both_ways(1_024).await;
}
