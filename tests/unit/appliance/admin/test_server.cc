// The server over real sockets on loopback, on ports that the kernel chooses.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "appliance/admin/server.h"
#include "tests/unit/appliance/admin/fake_source.h"

namespace pbox::admin {
namespace {

using Catch::Contains;
using Catch::StartsWith;
using Clock = std::chrono::steady_clock;

// A box's control thread with an admin server on it.
class RunningServer {
 public:
  explicit RunningServer(AdminOptions options = {}) : guard_(io_.get_executor()) {
    options.port = 0;
    options.names.push_back("box");
    auto started = AdminServer::start(io_, options, source_);
    REQUIRE(started.ok());
    server_ = std::move(*started);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~RunningServer() {
    boost::asio::post(io_, [this] { server_.reset(); });
    guard_.reset();
    thread_.join();
  }
  uint16_t port() const { return server_->port(); }

 private:
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_;
  FakeSource source_;
  std::unique_ptr<AdminServer> server_;
  std::thread thread_;
};

// A blocking client that gives up after five seconds.
class Client {
 public:
  explicit Client(uint16_t port, int family = AF_INET) : socket_(socket(family, SOCK_STREAM, 0)) {
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_addr = in6addr_loopback;
    connected_ = family == AF_INET
                     ? connect(socket_, reinterpret_cast<sockaddr*>(&v4), sizeof v4) == 0
                     : connect(socket_, reinterpret_cast<sockaddr*>(&v6), sizeof v6) == 0;
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }

  void send(const std::string& text) {
    size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t count = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<size_t>(count);
    }
  }

  // Returns header and body of one response. If the connection ends early, returns the bytes that
  // have arrived.
  std::string receive(bool with_body = true) {
    size_t header_end;
    while ((header_end = pending_.find("\r\n\r\n")) == std::string::npos) {
      if (!receive_more()) return std::exchange(pending_, "");
    }
    const size_t field = pending_.find("Content-Length: ");
    const size_t body = with_body ? std::strtoul(&pending_[field + 16], nullptr, 10) : 0;
    const size_t length = header_end + 4 + body;
    while (pending_.size() < length && receive_more()) {
    }
    std::string response = pending_.substr(0, length);
    pending_.erase(0, response.size());
    return response;
  }

  std::string ask(const std::string& method, const std::string& target) {
    send(method + " " + target + " HTTP/1.1\r\nHost: box\r\n\r\n");
    return receive(method != "HEAD");
  }

  // Returns whether the server closes the connection before the client's timeout, without sending
  // another byte.
  bool sees_the_end() {
    char byte;
    return pending_.empty() && recv(socket_, &byte, 1, 0) == 0;
  }

  // Returns whether the server has closed the connection by now.
  bool has_ended() {
    char byte;
    const ssize_t count = recv(socket_, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
  }

 private:
  bool receive_more() {
    char bytes[4096];
    const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    pending_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  int socket_;
  bool connected_ = false;
  std::string pending_;
};

TEST_CASE("one connection serves many requests, also pipelined ones") {
  const RunningServer server;
  Client client(server.port());
  CHECK_THAT(client.ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 OK\r\n"));
  CHECK_THAT(client.ask("GET", "/metrics"), Contains("pbox_worker_up{training_job=\"bert\""));
  CHECK_THAT(client.ask("GET", "/nowhere"), StartsWith("HTTP/1.1 404 "));
  const std::string request = "GET /readyz HTTP/1.1\r\nHost: box\r\n\r\n";
  client.send(request + request);
  CHECK_THAT(client.receive(), StartsWith("HTTP/1.1 200 OK\r\n"));
  CHECK_THAT(client.receive(), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_CASE("the answer to HEAD has the body's length, but not the body") {
  const RunningServer server;
  Client client(server.port());
  const std::string head = client.ask("HEAD", "/api/v1/jobs");
  const std::string whole = client.ask("GET", "/api/v1/jobs");
  CHECK(head.size() > 50);
  CHECK(whole.substr(0, head.size()) == head);
  CHECK(whole.size() > head.size());
}

TEST_CASE(
    "a POST changes a job and keeps the connection open, unless its body is too long to read") {
  const RunningServer server;
  Client client(server.port());
  const auto post = [](const std::string& headers, const std::string& body) {
    return "POST /api/v1/jobs/bert/priorities HTTP/1.1\r\nHost: box\r\nContent-Type: "
           "application/json\r\n" +
           headers + "\r\n" + body;
  };
  const std::string body = "{\"policy\": \"fifo\"}";
  client.send(post("Content-Length: " + std::to_string(body.size()) + "\r\n", body));
  CHECK_THAT(client.receive(), StartsWith("HTTP/1.1 200 ") && Contains("\"fifo\""));
  client.send(post("Content-Length: 4097\r\n", "{"));
  CHECK_THAT(client.receive(), StartsWith("HTTP/1.1 413 "));
  CHECK(client.sees_the_end());
  Client chunked(server.port());
  chunked.send(post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"));
  CHECK_THAT(chunked.receive(), StartsWith("HTTP/1.1 413 "));
}

TEST_CASE("other POSTs are 405 with the allowed methods, and a long body ends the connection") {
  const RunningServer server;
  Client client(server.port());
  const std::string response = client.ask("POST", "/metrics");
  CHECK_THAT(response, StartsWith("HTTP/1.1 405 "));
  CHECK_THAT(response, Contains("Allow: GET, HEAD, POST\r\n"));
  client.send("POST / HTTP/1.1\r\nHost: box\r\nContent-Length: 9999999999\r\n\r\nsome");
  CHECK_THAT(client.receive(), StartsWith("HTTP/1.1 413 "));
  CHECK(client.sees_the_end());

  Client chunked(server.port());
  chunked.send("GET / HTTP/1.1\r\nHost: box\r\nTransfer-Encoding: chunked\r\n\r\n");
  CHECK_THAT(chunked.receive(), StartsWith("HTTP/1.1 400 "));
}

TEST_CASE("HTTP/1.0 and Connection: close end the connection after the answer") {
  const RunningServer server;
  Client old(server.port());
  old.send("GET /healthz HTTP/1.0\r\n\r\n");
  CHECK_THAT(old.receive(), Contains("\"status\": \"ok\""));
  CHECK(old.sees_the_end());
  Client closing(server.port());
  closing.send("GET /healthz HTTP/1.1\r\nHost: box\r\nConnection: close\r\n\r\n");
  CHECK_THAT(closing.receive(), Contains("\"status\": \"ok\""));
  CHECK(closing.sees_the_end());
}

TEST_CASE("a page of another origin, or under another name, gets no answer but the remedy") {
  const RunningServer server;
  const auto ask = [&](const std::string& headers) {
    Client client(server.port());
    client.send("GET /healthz HTTP/1.1\r\n" + headers + "\r\n");
    return client.receive();
  };
  CHECK_THAT(ask("Host: box:9540\r\n"), StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(ask("Host: box\r\nOrigin: http://box\r\n"), StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(ask("Host: evil.example\r\n"),
             StartsWith("HTTP/1.1 421 Misdirected Request\r\n") && Contains("[admin] hosts"));
  CHECK_THAT(ask("Host: box\r\nOrigin: http://evil.example\r\n"),
             StartsWith("HTTP/1.1 403 Forbidden\r\n"));
  CHECK_THAT(ask(""), StartsWith("HTTP/1.1 400 "));
  CHECK_THAT(ask("Host: box\r\nHost: evil.example\r\n"), StartsWith("HTTP/1.1 400 "));
}

TEST_CASE("a header above the limit is 431, and bytes that are not HTTP are 400") {
  const RunningServer server;
  Client large(server.port());
  large.send("GET / HTTP/1.1\r\nHost: box\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n");
  CHECK_THAT(large.receive(), StartsWith("HTTP/1.1 431 "));
  Client noise(server.port());
  noise.send("\x16\x03\x01 hello\r\n\r\n");
  CHECK_THAT(noise.receive(), StartsWith("HTTP/1.1 400 ") && Contains("admin.tls = on"));
  Client binary(server.port());
  binary.send("\x01\x02\x03\r\n\r\n");
  CHECK_THAT(binary.receive(), StartsWith("HTTP/1.1 400 ") && Contains("not valid HTTP"));
  CHECK_THAT(Client(server.port()).ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("a client that sends byte by byte is disconnected in time and delays no other client") {
  const RunningServer server({.timeout_ms = 300});
  Client slow(server.port());
  const auto begin = Clock::now();
  // Bytes that keep coming do not put the end off.
  constexpr int kDripsMax = 600;
  int drips = 0;
  while (!slow.has_ended() && drips++ < kDripsMax) {
    slow.send("G");
    CHECK_THAT(Client(server.port()).ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(slow.has_ended());
  CHECK(Clock::now() - begin >= std::chrono::milliseconds(250));
}

TEST_CASE("a connection above the limit gets 503, and a closed connection makes room for another") {
  const RunningServer server({.connections_max = 2});
  Client first(server.port());
  CHECK_THAT(first.ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  {
    Client second(server.port());
    CHECK_THAT(second.ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
    Client third(server.port());
    CHECK_THAT(third.receive(), StartsWith("HTTP/1.1 503 "));
  }
  // The server notices the closed connection on its own thread. Connect until it has.
  const auto deadline = Clock::now() + std::chrono::seconds(4);
  std::string response;
  do {
    response = Client(server.port()).ask("GET", "/healthz");
  } while (response.rfind("HTTP/1.1 200 ", 0) != 0 && Clock::now() < deadline);
  CHECK_THAT(response, StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("a server that stops closes its connections and accepts no more") {
  uint16_t port = 0;
  std::unique_ptr<Client> client;
  {
    const RunningServer server;
    port = server.port();
    client = std::make_unique<Client>(port);
    CHECK_THAT(client->ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  }
  CHECK(client->sees_the_end());
  CHECK(!Client(port).connected());
}

TEST_CASE("IPv6 is served, and :: serves both families") {
  boost::asio::io_context io;
  FakeSource source;
  if (!AdminServer::start(io, {.listen = "::1", .port = 0}, source)) {
    WARN("skipped: this host has no IPv6");
    return;
  }
  const RunningServer server({.listen = "::"});
  for (const int family : {AF_INET, AF_INET6}) {
    CHECK_THAT(Client(server.port(), family).ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  }
}

TEST_CASE("an address that cannot be used is an error that names the option") {
  boost::asio::io_context io;
  FakeSource source;
  const auto nonsense = AdminServer::start(io, {.listen = "localhost"}, source);
  REQUIRE(!nonsense.ok());
  CHECK(nonsense.error().code == ErrorCode::kInvalidArgument);
  CHECK_THAT(nonsense.error().message, Contains("admin.listen = 'localhost'"));

  const RunningServer taken;
  const auto busy = AdminServer::start(io, {.port = taken.port()}, source);
  REQUIRE(!busy.ok());
  CHECK(busy.error().code == ErrorCode::kSystem);
  CHECK_THAT(busy.error().message, Contains("admin.port"));
}

}  // namespace
}  // namespace pbox::admin
