//! The metrics over HTTP: answers `GET /metrics`, and nothing else.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use trueno_zram_connections::{Admitted, ConnectionLimits, deadline_after};

use super::CONTENT_TYPE;
use crate::control::{ExportStat, ServedStore};
use crate::endpoint::{Endpoint, SocketStream};
use crate::request_reader::RequestReader;
use crate::server::{Service, SocketServer};

/// The longest head of a request: its first line and its fields.
const MAX_HEAD_BYTES: u64 = 16 << 10;

/// Limits on the clients of the metrics.
///
/// ```
/// use trueno_zram_serve::metrics::MetricsLimits;
/// assert!(MetricsLimits::default().max_connections < 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricsLimits {
    /// Connections at the same time. One more ends the oldest.
    pub max_connections: usize,
    /// The time for a whole request, and for a reply that the client does not read.
    pub request_timeout: Duration,
}

impl Default for MetricsLimits {
    fn default() -> Self {
        Self { max_connections: 8, request_timeout: Duration::from_secs(10) }
    }
}

impl MetricsLimits {
    /// Sets the number of connections at the same time.
    #[must_use]
    pub fn with_max_connections(self, max_connections: usize) -> Self {
        Self { max_connections, ..self }
    }

    /// Sets the time for a whole request.
    #[must_use]
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self }
    }
}

/// A running HTTP server of metrics. Dropping it ends all connections and waits for their threads.
///
/// Each connection has one request. There is no password and no TLS: whoever reaches the address sees the statistics, and can do
/// nothing else.
///
/// ```
/// use std::io::{Read, Write};
/// use std::sync::Arc;
/// use trueno_zram_serve::control::ServedStore;
/// use trueno_zram_serve::metrics::{MetricsLimits, MetricsServer};
/// use trueno_zram_store::{Store, StoreOptions};
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
/// let stores = vec![ServedStore::new("ram", store)];
/// let server = MetricsServer::start("127.0.0.1:0".parse()?, stores, MetricsLimits::default())?;
/// let mut client = std::net::TcpStream::connect(server.address()?)?;
/// client.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
/// let mut reply = String::new();
/// client.read_to_string(&mut reply)?;
/// assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("# EOF\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MetricsServer {
    server: SocketServer,
}

impl MetricsServer {
    /// Serves the metrics of stores on a TCP address.
    ///
    /// # Errors
    /// If the address is in use or not available, or no thread can be started.
    pub fn start(address: SocketAddr, stores: Vec<ServedStore>, limits: MetricsLimits) -> io::Result<Self> {
        let connection_limits = ConnectionLimits::new(limits.max_connections);
        let service = MetricsService { stores, limits };
        let server = SocketServer::start("metrics", &Endpoint::Tcp(address), connection_limits, service)?;
        Ok(Self { server })
    }

    /// Returns the address, with the port that the system chose if it was 0.
    ///
    /// # Errors
    /// If the system does not report the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self.server.endpoint()? {
            Endpoint::Tcp(address) => Ok(address),
            Endpoint::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.server.connections()
    }
}

#[derive(Debug)]
struct MetricsService {
    stores: Vec<ServedStore>,
    limits: MetricsLimits,
}

impl Service for MetricsService {
    fn prepare(&self, stream: &SocketStream) -> io::Result<Instant> {
        stream.set_write_timeout(Some(self.limits.request_timeout))?;
        Ok(deadline_after(self.limits.request_timeout))
    }

    fn serve(&self, client: &Admitted<SocketStream>, deadline: Instant) -> io::Result<()> {
        let stream = client.connection();
        let input = BufReader::new(RequestReader { stream, deadline: Some(deadline) });
        let reply = match read_head(input)? {
            Ok(RequestedBody::Sent) => reply("200 OK", CONTENT_TYPE, &self.text(), true),
            Ok(RequestedBody::LeftOut) => reply("200 OK", CONTENT_TYPE, &self.text(), false),
            Err(status) => reply(status, "text/plain; charset=utf-8", &format!("{status}\n"), true),
        };
        let mut stream = stream;
        stream.write_all(reply.as_bytes())
    }
}

impl MetricsService {
    fn text(&self) -> String {
        super::text(&self.stores.iter().map(ServedStore::stat).collect::<Vec<ExportStat>>())
    }
}

/// The part of the reply that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestedBody {
    Sent,
    /// Of `HEAD`.
    LeftOut,
}

/// Reads the head of a request to its empty line. The inner error is the status of the refusal; the outer one, of the
/// connection.
fn read_head(input: impl BufRead) -> io::Result<Result<RequestedBody, &'static str>> {
    const TOO_LARGE: &str = "431 Request Header Fields Too Large";
    let mut input = input.take(MAX_HEAD_BYTES);
    let mut first = Vec::new();
    input.read_until(b'\n', &mut first)?;
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line)? {
            _ if line == b"\r\n" || line == b"\n" => return Ok(parse_request_line(&first)),
            0 if input.limit() == 0 => return Ok(Err(TOO_LARGE)),
            0 => return Ok(Err("400 Bad Request")),
            _ => {}
        }
    }
}

/// Parses `GET /metrics HTTP/1.1`.
fn parse_request_line(line: &[u8]) -> Result<RequestedBody, &'static str> {
    let bad = "400 Bad Request";
    let line = std::str::from_utf8(line).map_err(|_| bad)?.trim_end_matches(['\r', '\n']);
    let fields: Vec<&str> = line.split(' ').collect();
    let &[method, target, version] = &fields[..] else { return Err(bad) };
    if !version.starts_with("HTTP/1.") {
        return Err("505 HTTP Version Not Supported");
    }
    let body = match method {
        "GET" => RequestedBody::Sent,
        "HEAD" => RequestedBody::LeftOut,
        _ => return Err("405 Method Not Allowed"),
    };
    let path = target.split('?').next().unwrap_or(target);
    if path == "/metrics" { Ok(body) } else { Err("404 Not Found") }
}

/// Returns a whole reply, after which the connection ends.
fn reply(status: &str, content_type: &str, body: &str, has_body: bool) -> String {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    if has_body { head + body } else { head }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(request: &[u8]) -> Result<RequestedBody, &'static str> {
        read_head(request).unwrap()
    }

    #[test]
    fn only_get_and_head_of_the_metrics_are_answered() {
        assert_eq!(head(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Ok(RequestedBody::Sent));
        assert_eq!(head(b"HEAD /metrics?a=b HTTP/1.0\n\n"), Ok(RequestedBody::LeftOut));
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /metrics/../secret HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics HTTP/2\r\n\r\n", "505"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"\xff\xfe / HTTP/1.1\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.1\r\nHost: x", "400"),
            (b"", "400"),
        ] {
            assert!(head(request).is_err_and(|refused| refused.starts_with(status)), "{:?}", head(request));
        }
    }

    #[test]
    fn heads_are_bounded() {
        let fields = |bytes: usize| [&b"GET /metrics HTTP/1.1\r\nX: "[..], &vec![b'x'; bytes], b"\r\n\r\n"].concat();
        assert!(head(&fields(15 << 10)).is_ok());
        assert!(head(&fields(16 << 10)).is_err_and(|refused| refused.starts_with("431")));
        assert!(head(&vec![b'x'; 1 << 20]).is_err_and(|refused| refused.starts_with("431")));
    }

    #[test]
    fn lengths_are_those_of_the_body() {
        let whole = reply("200 OK", "text/plain", "body\n", true);
        assert!(whole.contains("\r\nContent-Length: 5\r\n") && whole.ends_with("\r\n\r\nbody\n"));
        let without = reply("200 OK", "text/plain", "body\n", false);
        assert!(without.contains("\r\nContent-Length: 5\r\n") && without.ends_with("\r\n\r\n"));
    }
}
