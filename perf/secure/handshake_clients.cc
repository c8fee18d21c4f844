// pbox-perf-handshakes BOX|- CLIENT_KEYS BOX_KEYS RATE: clients that shake hands with a box, and
// send it no request. Each line of standard input is a number of milliseconds. The clients shake
// hands for that long, RATE times a second. Then the program prints how many handshakes succeeded
// and how many failed. With "-" in place of a box, both ends are in this process: the computing is
// the same, but no box takes part. Part of scenario `secure`.
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nic/tls/credentials.h"

namespace {

using pbox::tls::Credentials;
using Clock = std::chrono::steady_clock;

// Enough threads that handshakes which wait for the box do not lower the rate.
constexpr uint32_t kThreads = 8;

struct Clients {
  std::string host, port;  // empty: no box
  std::unique_ptr<const Credentials> own, box;
  double per_second = 0;
  std::atomic<uint64_t> done = 0, failed = 0;
};

int connect_to(const Clients& clients) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(clients.host.c_str(), clients.port.c_str(), &hints, &found) != 0) return -1;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  if (connected) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

bool send_all(int fd, std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  bytes.clear();
  return true;
}

// Returns true once the box has closed the connection, and so has finished its part of the
// handshake; false if the handshake fails.
bool shake_hands_over(int fd, const Clients& clients) {
  const auto connection = clients.own->connect("");
  std::string plain, to_box;
  if (!connection->receive("", plain, to_box)) return false;
  char bytes[4096];
  while (!connection->is_established()) {
    if (!send_all(fd, to_box)) return false;
    const ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    if (!connection->receive({bytes, static_cast<size_t>(count)}, plain, to_box)) return false;
  }
  if (!send_all(fd, to_box) || shutdown(fd, SHUT_WR) != 0) return false;
  while (recv(fd, bytes, sizeof(bytes), 0) > 0) {
  }
  return true;
}

bool shake_hands_alone(const Clients& clients) {
  const auto client = clients.own->connect("");
  const auto box = clients.box->accept();
  std::string plain, to_box, to_client;
  if (!client->receive("", plain, to_box)) return false;
  while (!client->is_established() || !box->is_established()) {
    if (to_box.empty()) return false;
    if (!box->receive(to_box, plain, to_client)) return false;
    to_box.clear();
    if (!client->receive(to_client, plain, to_box)) return false;
    to_client.clear();
  }
  return true;
}

bool shake_hands(const Clients& clients) {
  if (clients.host.empty()) return shake_hands_alone(clients);
  const int fd = connect_to(clients);
  if (fd < 0) return false;
  const bool done = shake_hands_over(fd, clients);
  close(fd);
  return done;
}

// Shakes hands at this thread's share of the rate. A late handshake does not shift the next ones.
void run_thread(Clients& clients, uint32_t index, Clock::time_point begin, Clock::time_point end) {
  const std::chrono::duration<double> apart(kThreads / clients.per_second);
  const auto step = std::chrono::duration_cast<Clock::duration>(apart);
  for (auto next = begin + step * index / kThreads; next < end; next += step) {
    std::this_thread::sleep_until(next);
    (shake_hands(clients) ? clients.done : clients.failed)++;
    if (Clock::now() >= end) return;
  }
}

void run(Clients& clients, std::chrono::milliseconds duration) {
  clients.done = clients.failed = 0;
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (uint32_t index = 0; index < kThreads; ++index) {
    threads.emplace_back(run_thread, std::ref(clients), index, begin, begin + duration);
  }
  for (std::thread& thread : threads) thread.join();
}

bool load(const char* folder, std::unique_ptr<const Credentials>& to) {
  auto loaded = Credentials::load(folder);
  if (loaded) {
    to = std::move(*loaded);
    return true;
  }
  std::fprintf(stderr, "pbox-perf-handshakes: %s\n", loaded.error().message.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  Clients clients;
  uint32_t rate = 0;
  const std::string where = argc == 5 ? argv[1] : "";
  const std::string rate_text = argc == 5 ? argv[4] : "";
  std::from_chars(rate_text.data(), rate_text.data() + rate_text.size(), rate);
  if (rate == 0) {
    std::fprintf(stderr, "usage: pbox-perf-handshakes BOX|- CLIENT_KEYS BOX_KEYS RATE\n");
    return 2;
  }
  clients.per_second = rate;
  if (where != "-") {
    clients.host = where.substr(0, where.rfind(':'));
    clients.port = where.substr(where.rfind(':') + 1);
  }
  if (!load(argv[2], clients.own) || !load(argv[3], clients.box)) return 1;
  for (uint32_t milliseconds = 0; std::cin >> milliseconds;) {
    run(clients, std::chrono::milliseconds(milliseconds));
    std::cout << clients.done << " " << clients.failed << std::endl;
  }
  return 0;
}
