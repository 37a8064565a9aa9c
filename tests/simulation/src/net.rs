//! gRPC over the simulated network.

use leasehold_model::Address;
use leasehold_rpc::channel::{ChannelSettings, Dialer};
use leasehold_rpc::server::Limits;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};

/// Where every host serves.
pub const PORT: u16 = 7470;

/// Where `host` is reached.
pub fn address(host: &str) -> Address {
    Address::new(format!("{host}:{PORT}")).expect("hosts have short plain names")
}

/// Dials by host name.
pub fn dialer() -> Dialer {
    let half = Duration::from_millis(500);
    let settings = ChannelSettings {
        connect_timeout: Duration::from_millis(300),
        keepalive_interval: half,
        keepalive_timeout: half,
        deadline: Duration::from_secs(1),
    };
    Dialer::with_connector(|address: Address| async move { TcpStream::connect(address.as_str()).await.map(Connection) })
        .settings(settings)
}

/// What servers admit.
pub fn limits() -> Limits {
    let half = Duration::from_millis(500);
    Limits { grace: half, keepalive_interval: half, keepalive_timeout: half, ..Limits::default() }
}

/// Listens, and yields what connects.
pub async fn listen() -> io::Result<impl futures::Stream<Item = io::Result<Connection>> + Send> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
    Ok(futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| Connection(stream));
        Some((accepted, listener))
    }))
}

/// A simulated connection.
#[derive(Debug)]
pub struct Connection(TcpStream);

impl Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
