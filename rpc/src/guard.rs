//! Answers whose error details are not base64: the transport panics over them, and a manager dials whoever registered.
//! Such details are taken away before it looks; a status without details leaves the outcome unknown.

use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Bytes, http};

const DETAILS: &str = "grpc-status-details-bin";

/// The same answer, safe to be read.
pub(crate) fn guarded(mut answer: http::Response<Body>) -> http::Response<Body> {
    purge(answer.headers_mut());
    if http_body::Body::is_end_stream(answer.body()) {
        return answer;
    }
    answer.map(|inner| Body::new(Answer { inner }))
}

fn purge(headers: &mut http::HeaderMap) {
    if headers.get(DETAILS).is_some_and(|value| !is_base64(value.as_bytes())) {
        headers.remove(DETAILS);
    }
}

/// Base64 in the standard alphabet, padded or not, with nothing in the bits that no byte needs.
fn is_base64(text: &[u8]) -> bool {
    let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let digits = &text[..text.len() - padding];
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let last = digits.last().copied().and_then(value).unwrap_or(0);
    let tail = match digits.len() % 4 {
        0 => padding == 0,
        2 => last & 0b1111 == 0 && (padding == 0 || padding == 2),
        3 => last & 0b11 == 0 && padding <= 1,
        _ => false,
    };
    tail && digits.iter().all(|byte| value(*byte).is_some())
}

/// An answer's body, whose trailers may carry details too.
struct Answer {
    inner: Body,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let mut polled = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            purge(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_base64_that_decodes_is_left_in_place() {
        for good in ["", "AA", "AA==", "AAA", "AAA=", "AAAA", "+/8=", "CAUSAmhp"] {
            assert!(is_base64(good.as_bytes()), "{good}");
        }
        for bad in
            ["A", "=", "A=", "A===", "AA=", "AB", "AAB", "AAAA=", "AAAA==", "!!!!", "AA AA", "A=AA", "AA-_", "AAAAA"]
        {
            assert!(!is_base64(bad.as_bytes()), "{bad}");
        }
    }
}
