// Abstract sockets of this network namespace, named after the process.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "nic/shm/hello.h"
#include "tests/support/no_free_descriptors.h"

namespace pbox::nic {
namespace {

// A name that no other test and no other process uses.
std::string socket_name(const std::string& test) {
  return "pbox-test-hello-" + std::to_string(getpid()) + "-" + test;
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

Descriptor some_memory() {
  Descriptor file(memfd_create("pbox-test", MFD_CLOEXEC));
  REQUIRE(file.ok());
  return file;
}

bool is_same_file(const Descriptor& a, const Descriptor& b) {
  struct stat one {};
  struct stat two {};
  REQUIRE(fstat(a.get(), &one) == 0);
  REQUIRE(fstat(b.get(), &two) == 0);
  return one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

// Two ends of a connection.
struct HelloSockets {
  Descriptor box, worker;

  HelloSockets() {
    std::array<int, 2> sockets{-1, -1};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) == 0);
    box = Descriptor(sockets[0]);
    worker = Descriptor(sockets[1]);
  }
};

// Sends a message with as many copies of a descriptor.
void send_raw(const Descriptor& socket, const void* data, size_t bytes, size_t copies) {
  const Descriptor file = some_memory();
  const std::vector<int> files(copies, file.get());
  iovec piece{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, 256> control{};
  if (copies > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(copies * sizeof(int));
    REQUIRE(message.msg_controllen <= control.size());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(copies * sizeof(int));
    std::memcpy(CMSG_DATA(header), files.data(), copies * sizeof(int));
  }
  REQUIRE(sendmsg(socket.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

LaneAnswer answer_with(const std::string& refusal) {
  LaneAnswer answer;
  std::memcpy(answer.refusal.data(), refusal.data(), refusal.size());
  return answer;
}

std::string hello_error(const Descriptor& socket) {
  const auto received = receive_hello(socket.get());
  REQUIRE_FALSE(received.ok());
  CHECK(received.error().code == ErrorCode::kInvalidArgument);
  return received.error().message;
}

std::string answer_error(const Descriptor& socket) {
  const auto received = receive_answer(socket.get());
  REQUIRE_FALSE(received.ok());
  CHECK(received.error().code == ErrorCode::kInvalidArgument);
  return received.error().message;
}

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a hello and its answer pass an abstract socket with their descriptors") {
  const std::string name = socket_name("pass");
  const auto listener = listen_for_lanes(name);
  REQUIRE(listener.ok());
  bool would_block = true;
  const auto worker = connect_lane(name, would_block);
  REQUIRE(worker.ok());
  CHECK_FALSE(would_block);
  const Descriptor box(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(box.ok());

  LaneHello hello{.pipeline = 3, .ring_bytes = 1 << 20};
  for (size_t at = 0; at < hello.token.size(); ++at) hello.token[at] = static_cast<std::byte>(at);
  const Descriptor segment = some_memory();
  REQUIRE(send_hello(worker->get(), hello, {segment.get()}).ok());
  const auto received = receive_hello(box.get());
  REQUIRE(received.ok());
  REQUIRE(received->has_value());
  CHECK((*received)->hello.version == LaneHello::kVersion);
  CHECK((*received)->hello.pipeline == 3);
  CHECK(((*received)->hello.token == hello.token));
  CHECK((*received)->hello.ring_bytes == 1 << 20);
  CHECK(is_same_file((*received)->segment, segment));

  const Descriptor own = some_memory();
  const Descriptor bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  REQUIRE(send_answer(box.get(), {}, {own.get(), bell.get()}).ok());
  const auto answer = receive_answer(worker->get());
  REQUIRE(answer.ok());
  REQUIRE(answer->has_value());
  CHECK((*answer)->answer.version == LaneHello::kVersion);
  CHECK((*answer)->answer.refusal[0] == 0);
  CHECK(is_same_file((*answer)->segment, own));
  uint64_t rung = 5;
  REQUIRE(write((*answer)->bell.get(), &rung, sizeof(rung)) == sizeof(rung));
  rung = 0;
  REQUIRE(read(bell.get(), &rung, sizeof(rung)) == sizeof(rung));
  CHECK(rung == 5);
}

TEST_CASE("memory that the ends show each other comes with the messages") {
  const HelloSockets sockets;
  const Descriptor segment = some_memory(), bell = some_memory(), memory = some_memory();
  REQUIRE(
      send_hello(sockets.worker.get(), {.memory_bytes = 4096}, {segment.get(), memory.get()}).ok());
  const auto received = receive_hello(sockets.box.get());
  REQUIRE(received.ok());
  REQUIRE(received->has_value());
  CHECK((*received)->hello.memory_bytes == 4096);
  CHECK(is_same_file((*received)->segment, segment));
  CHECK(is_same_file((*received)->memory, memory));

  const LaneAnswer shows{.reads_memory = 1, .memory_bytes = 8192};
  REQUIRE(send_answer(sockets.box.get(), shows, {segment.get(), bell.get(), memory.get()}).ok());
  const auto answer = receive_answer(sockets.worker.get());
  REQUIRE(answer.ok());
  REQUIRE(answer->has_value());
  CHECK((*answer)->answer.reads_memory == 1);
  CHECK((*answer)->answer.memory_bytes == 8192);
  CHECK(is_same_file((*answer)->bell, bell));
  CHECK(is_same_file((*answer)->memory, memory));

  // A message that promises memory must bring it.
  REQUIRE(send_hello(sockets.worker.get(), {.memory_bytes = 1}, {segment.get()}).ok());
  CHECK(says(hello_error(sockets.box), "1 descriptors instead of 2"));
  REQUIRE(send_answer(sockets.box.get(), shows, {segment.get(), bell.get()}).ok());
  CHECK(says(answer_error(sockets.worker), "2 descriptors instead of 3"));
}

TEST_CASE("nothing is received before a message about a lane has come") {
  const HelloSockets sockets;
  for (int count = 0; count < 2; ++count) {
    const auto hello = receive_hello(sockets.box.get());
    REQUIRE(hello.ok());
    CHECK_FALSE(hello->has_value());
    const auto answer = receive_answer(sockets.worker.get());
    REQUIRE(answer.ok());
    CHECK_FALSE(answer->has_value());
  }
}

TEST_CASE("a refusal arrives with its reason and without descriptors") {
  const HelloSockets sockets;
  REQUIRE(send_answer(sockets.box.get(), answer_with("no room here"), {}).ok());
  const auto answer = receive_answer(sockets.worker.get());
  REQUIRE(answer.ok());
  REQUIRE(answer->has_value());
  CHECK(std::string((*answer)->answer.refusal.data()) == "no room here");
  CHECK_FALSE((*answer)->segment.ok());
  CHECK_FALSE((*answer)->bell.ok());
}

TEST_CASE("a refusal that fills its field is ended where it is received") {
  const HelloSockets sockets;
  LaneAnswer answer;
  answer.refusal.fill('x');
  REQUIRE(send_answer(sockets.box.get(), answer, {}).ok());
  const auto received = receive_answer(sockets.worker.get());
  REQUIRE(received.ok());
  REQUIRE(received->has_value());
  CHECK(strnlen((*received)->answer.refusal.data(), answer.refusal.size()) ==
        answer.refusal.size() - 1);
}

TEST_CASE("an end that has closed the connection is reported to the other") {
  HelloSockets sockets;
  sockets.worker = Descriptor();
  const auto hello = receive_hello(sockets.box.get());
  REQUIRE_FALSE(hello.ok());
  CHECK(hello.error().code == ErrorCode::kClosed);
  CHECK_FALSE(send_answer(sockets.box.get(), {}, {}).ok());
  HelloSockets others;
  others.box = Descriptor();
  const auto answer = receive_answer(others.worker.get());
  REQUIRE_FALSE(answer.ok());
  CHECK(answer.error().code == ErrorCode::kClosed);
  const Descriptor segment = some_memory();
  CHECK_FALSE(send_hello(others.worker.get(), {}, {segment.get()}).ok());
}

TEST_CASE("a message about a lane that has another length is an error") {
  const HelloSockets sockets;
  const std::array<std::byte, 2 * sizeof(LaneAnswer)> zeros{};
  const size_t before = open_descriptors();
  for (const size_t bytes : {size_t{1}, sizeof(LaneHello) - 1, sizeof(LaneHello) + 1}) {
    for (const size_t copies : {size_t{0}, size_t{1}, size_t{2}}) {
      send_raw(sockets.worker, zeros.data(), bytes, copies);
      CHECK(says(hello_error(sockets.box), "bytes instead of"));
    }
  }
  for (const size_t bytes : {size_t{1}, sizeof(LaneAnswer) - 1, sizeof(LaneAnswer) + 1}) {
    send_raw(sockets.box, zeros.data(), bytes, 2);
    CHECK(says(answer_error(sockets.worker), "bytes instead of"));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a hello with too few or too many descriptors is an error, and none is left open") {
  const HelloSockets sockets;
  const LaneHello hello;
  const size_t before = open_descriptors();
  for (const size_t copies : {0, 2, 3, 10}) {
    send_raw(sockets.worker, &hello, sizeof(hello), copies);
    CHECK(says(hello_error(sockets.box), "descriptors"));
    CHECK(open_descriptors() == before);
  }
  // The connection itself is as it was.
  send_raw(sockets.worker, &hello, sizeof(hello), 1);
  const auto received = receive_hello(sockets.box.get());
  REQUIRE(received.ok());
  CHECK(received->has_value());
  CHECK(open_descriptors() == before + 1);
}

TEST_CASE("an end without room for descriptors is told to raise its limit") {
  const HelloSockets sockets;
  const LaneHello hello;
  send_raw(sockets.worker, &hello, sizeof(hello), 1);
  const auto received = [&] {
    const test::NoFreeDescriptors none;
    return receive_hello(sockets.box.get());
  }();
  REQUIRE_FALSE(received.ok());
  CHECK(received.error().code == ErrorCode::kResourceExhausted);
  CHECK(says(received.error().message, "LimitNOFILE"));
}

TEST_CASE("an answer with too few or too many descriptors is an error, and none is left open") {
  const HelloSockets sockets;
  const LaneAnswer consent;
  const LaneAnswer refusal = answer_with("no");
  const size_t before = open_descriptors();
  for (const size_t copies : {0, 1, 3, 10}) {
    send_raw(sockets.box, &consent, sizeof(consent), copies);
    CHECK(says(answer_error(sockets.worker), "descriptors"));
  }
  for (const size_t copies : {1, 2, 3}) {
    send_raw(sockets.box, &refusal, sizeof(refusal), copies);
    CHECK(says(answer_error(sockets.worker), "descriptors"));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a connection to a name that nobody has fails at once") {
  const std::string name = socket_name("nobody");
  const size_t before = open_descriptors();
  bool would_block = true;
  const auto worker = connect_lane(name, would_block);
  REQUIRE_FALSE(worker.ok());
  CHECK_FALSE(would_block);
  CHECK(says(worker.error().message, name));
  CHECK(open_descriptors() == before);
}

TEST_CASE("a name has one listener, and is free again once that is closed") {
  const std::string name = socket_name("taken");
  bool would_block = false;
  {
    const auto first = listen_for_lanes(name);
    REQUIRE(first.ok());
    const auto second = listen_for_lanes(name);
    REQUIRE_FALSE(second.ok());
    CHECK(says(second.error().message, name));
    CHECK(connect_lane(name, would_block).ok());
  }
  CHECK_FALSE(connect_lane(name, would_block).ok());
  CHECK(listen_for_lanes(name).ok());
}

TEST_CASE("a name may be as long as the maximum") {
  std::string name = socket_name("long");
  name.resize(kLaneSocketBytesMax, '-');
  const auto listener = listen_for_lanes(name);
  REQUIRE(listener.ok());
  bool would_block = false;
  CHECK(connect_lane(name, would_block).ok());
  name.back() = '+';
  CHECK_FALSE(connect_lane(name, would_block).ok());
}

TEST_CASE("a worker is told to try again while the box has many connections to accept") {
  const std::string name = socket_name("busy");
  const auto listener = listen_for_lanes(name);
  REQUIRE(listener.ok());
  std::vector<Descriptor> waiting;
  bool would_block = false;
  while (waiting.size() < 400) {
    auto worker = connect_lane(name, would_block);
    if (!worker) break;
    waiting.push_back(std::move(*worker));
  }
  CHECK(would_block);
  const Descriptor accepted(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(accepted.ok());
  CHECK(connect_lane(name, would_block).ok());
}

}  // namespace pbox::nic
