//! Whatever comes over the wire, the manager answers by name and goes on: giant and negative numbers, nonsense, nothing.

use crate::processes::Place;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};

/// Carries bytes as they are.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(out, &item);
        Ok(())
    }
    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;
    fn decode(&mut self, input: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let len = bytes::Buf::remaining(input);
        Ok(Some(bytes::Buf::copy_to_bytes(input, len).to_vec()))
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(byte);
            return out;
        }
        out.push(byte | 0x80);
    }
}

fn bytes_field(number: u64, value: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

fn number_field(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

async fn call(address: &str, method: &str, body: Vec<u8>) -> Result<Vec<u8>, Status> {
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = format!("/leasehold.v1.ManagerService/{method}").parse().unwrap();
    client.unary(Request::new(body), path, Raw).await.map(tonic::Response::into_inner)
}

/// Case 33, case 19, R8: field numbers as in rpc/proto/leasehold/v1/manager.proto.
fn renewal(epoch: u64, applied: u64, heard: u64) -> Vec<u8> {
    let claim = [
        bytes_field(1, &[7; 16]),
        number_field(2, applied),
        bytes_field(3, &varint(3)),
        bytes_field(4, &varint(epoch)),
    ]
    .concat();
    [bytes_field(1, &[9; 16]), bytes_field(2, &[1; 32]), bytes_field(3, &claim), number_field(4, heard)].concat()
}

#[test]
fn giant_epochs_and_nonsense_on_the_wire_are_refused_by_name_and_harm_nothing() {
    let place = Place::new();
    let mut manager = place.manager_with(&[]);
    let address = manager.address();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = |method: &str, body: Vec<u8>| runtime.block_on(call(&address, method, body)).unwrap_err();
    for (giant, field) in [
        (renewal(u64::MAX, 1, 1), "epoch"),
        (renewal(i64::MAX as u64 + 1, 1, 1), "epoch"),
        (renewal(0, 1, 1), "epoch"),
        (renewal(1, u64::MAX, 1), "applied"),
        (renewal(1, 1, u64::MAX), "heard"),
    ] {
        let status = refused("RenewShardLease", giant);
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(field), "{}", status.message());
    }
    let status = refused("RenewShardLease", renewal(i64::MAX as u64, i64::MAX as u64, i64::MAX as u64));
    assert_eq!(status.code(), Code::NotFound, "acceptable, and from nobody that is known: {status:?}");
    for method in ["Register", "RenewShardLease", "Deregister", "ExplainShard", "SetDraining"] {
        let status = refused(method, Vec::new());
        assert!(matches!(status.code(), Code::InvalidArgument | Code::NotFound), "{method}: {status:?}");
        let garbage = refused(method, vec![0xff; 64]);
        assert!(matches!(garbage.code(), Code::Internal | Code::InvalidArgument), "{method}: {garbage:?}");
    }
    let _executor = place.executor(&address, "executor-1", &[]);
    place.served(&address, 1);
}
