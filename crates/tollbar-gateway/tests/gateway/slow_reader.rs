//! Back-pressure: who does not read.

use std::time::Duration;

use crate::common::{Client, get, open_gateway, upstream};
use bytes::Bytes;
use http::{Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::timeout;

const CHUNK_BYTES: usize = 64 * 1024;

/// A client that does not read stops the upstream from sending.
#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_is_not_sent_more() {
    let (told, mut sent) = tokio::sync::mpsc::unbounded_channel();
    let upstream = upstream(move |_| {
        let told = told.clone();
        async move {
            let chunks = (0..4_096).map(move |at| {
                told.send(at).unwrap();
                Ok(Frame::data(Bytes::from(vec![0; CHUNK_BYTES])))
            });
            Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(chunks))))
        }
    })
    .await;
    let gateway = open_gateway(upstream).await;
    let mut client = Client::connect(gateway, Version::HTTP_11).await;
    let response = client.send(get("/")).await;
    // As long as chunks are taken, there is room on the way; then there is none, and it stands still.
    let mut count = 0;
    while let Ok(Some(_)) = timeout(Duration::from_millis(500), sent.recv()).await {
        count += 1;
    }
    assert!(count < 1_024, "{count} chunks of 64 KiB went to nobody");
    drop(response);
}
