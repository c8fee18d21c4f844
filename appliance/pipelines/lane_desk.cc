#include "appliance/pipelines/lane_desk.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "base/entropy.h"

namespace pbox::pipelines {
namespace {

// How long to wait before accepting again if the process has no descriptors left.
constexpr auto kPause = std::chrono::milliseconds(100);

std::string draw_name() {
  char name[32];
  std::snprintf(name, sizeof(name), "pbox-lanes-%016llx",
                static_cast<unsigned long long>(system_entropy()));
  return name;
}

nic::LaneToken draw_token() {
  nic::LaneToken token;
  for (size_t at = 0; at < token.size(); at += sizeof(uint64_t)) {
    const uint64_t drawn = system_entropy();
    std::memcpy(token.data() + at, &drawn, sizeof(drawn));
  }
  return token;
}

nic::LaneAnswer refusal(const Error& error) {
  nic::LaneAnswer answer;
  const size_t bytes = std::min(error.message.size(), answer.refusal.size() - 1);
  std::memcpy(answer.refusal.data(), error.message.data(), bytes);
  return answer;
}

}  // namespace

Result<std::unique_ptr<LaneDesk>> LaneDesk::open(boost::asio::io_context& context, Attach attach) {
  const std::string name = draw_name();
  auto socket = nic::listen_for_lanes(name);
  if (!socket) return socket.error();
  std::unique_ptr<LaneDesk> desk(
      new LaneDesk(context, name, std::move(*socket), std::move(attach)));
  desk->wait();
  return desk;
}

LaneDesk::LaneDesk(boost::asio::io_context& context, std::string name, Descriptor socket,
                   Attach attach)
    : name_(std::move(name)),
      attach_(std::move(attach)),
      socket_(context, socket.release()),
      pause_(context) {}

LaneDesk::Offer LaneDesk::offer(uint64_t owner, std::vector<Seat> seats) {
  end_offer(owner);
  const nic::LaneToken token = draw_token();
  promises_[token] = {owner, std::move(seats)};
  return {name_, token};
}

void LaneDesk::withdraw(uint64_t owner) {
  end_offer(owner);
  asked_.erase(owner);
}

void LaneDesk::end_offer(uint64_t owner) {
  std::erase_if(promises_, [owner](const auto& entry) { return entry.second.owner == owner; });
}

void LaneDesk::withdraw_memory(const NumaArena& memory) {
  std::erase_if(promises_, [&memory](const auto& entry) {
    const std::vector<Seat>& seats = entry.second.seats;
    return std::any_of(seats.begin(), seats.end(),
                       [&memory](const Seat& seat) { return seat.grant.results == &memory; });
  });
}

void LaneDesk::wait() {
  socket_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                     [this](const boost::system::error_code& error) {
                       if (!error) accept_all();
                     });
}

void LaneDesk::pause() {
  pause_.expires_after(kPause);
  pause_.async_wait([this](const boost::system::error_code& error) {
    if (!error) wait();
  });
}

void LaneDesk::accept_all() {
  for (size_t count = 0; count < kPendingMax; ++count) {
    const int fd = accept4(socket_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
      return pause();
    }
    if (fd < 0) break;
    Descriptor connection(fd);
    if (pending_.size() >= kPendingMax) pending_.pop_front();
    pending_.emplace_back(socket_.get_executor());
    boost::system::error_code refused;
    pending_.back().assign(connection.get(), refused);
    if (refused) {
      pending_.pop_back();
      return pause();
    }
    connection.release();
    wait_for_hello(std::prev(pending_.end()));
  }
  wait();
}

void LaneDesk::wait_for_hello(Pending::iterator pending) {
  pending->async_wait(boost::asio::posix::descriptor_base::wait_read,
                      [this, pending](const boost::system::error_code& error) {
                        if (!error) take_hello(pending);  // else it was displaced
                      });
}

void LaneDesk::take_hello(Pending::iterator pending) {
  Descriptor connection(pending->release());
  pending_.erase(pending);
  auto received = nic::receive_hello(connection.get());
  if (!received && received.error().code == ErrorCode::kResourceExhausted) {
    static_cast<void>(nic::send_answer(connection.get(), refusal(received.error()), {}));
  }
  if (!received || !*received) return;
  if (const Status seated = seat(**received, connection); !seated) {
    // If the worker has gone, nobody needs the answer.
    static_cast<void>(nic::send_answer(connection.get(), refusal(seated.error()), {}));
  }
}

Status LaneDesk::seat(const nic::ReceivedHello& received, Descriptor& connection) {
  const nic::LaneHello& hello = received.hello;
  if (hello.version != nic::LaneHello::kVersion) {
    return Error{ErrorCode::kMismatch,
                 "the worker asks for lanes of version " + std::to_string(hello.version) +
                     ", this box has version " + std::to_string(nic::LaneHello::kVersion) +
                     "; install the same release on both, or choose the port 'socket'"};
  }
  const auto promise = promises_.find(hello.token);
  if (promise == promises_.end()) {
    return Error{ErrorCode::kUnavailable, "the box has not offered this worker a lane"};
  }
  if (hello.pipeline >= promise->second.seats.size()) {
    return Error{ErrorCode::kInvalidArgument, "pipeline " + std::to_string(hello.pipeline) +
                                                  " is not one of the session's " +
                                                  std::to_string(promise->second.seats.size())};
  }
  const uint64_t owner = promise->second.owner;
  Seat seat = promise->second.seats[hello.pipeline];
  Asked& asked = asked_[owner];
  // Also if the lane is not made after all: until then the pipeline may have read the files.
  if (!asked.seats.insert(hello.pipeline).second) {
    return Error{ErrorCode::kUnavailable, "the worker has already asked for its lane to pipeline " +
                                              std::to_string(hello.pipeline) +
                                              "; it must join again to get another"};
  }
  if (hello.memory_bytes > 0 && !asked.is_first_memory(received.memory)) {
    seat.grant.memory_bytes_max = 0;
  }
  return attach_(owner, seat, received, connection);
}

// Returns whether this is the first file of memory that the owner has shown.
bool LaneDesk::Asked::is_first_memory(const Descriptor& file) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return false;
  const std::pair<uint64_t, uint64_t> shown{status.st_dev, status.st_ino};
  if (!memory) memory = shown;
  return *memory == shown;
}

}  // namespace pbox::pipelines
