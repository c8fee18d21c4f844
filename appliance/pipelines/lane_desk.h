// Accepts workers of this host that send and receive by lanes of shared memory. A worker gets an
// offer on its control connection, connects to the desk's UNIX socket, once for each pipeline, and
// presents its token. Control thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/pipeline_host.h"
#include "nic/shm/hello.h"

namespace pbox::pipelines {

class LaneDesk {
 public:
  using Seat = control::PipelineHost::LaneSeat;
  using Offer = control::PipelineHost::LaneOffer;
  // Makes the lane and answers the hello. On success it takes over the connection.
  using Attach = std::function<Status(uint64_t owner, const Seat& seat,
                                      const nic::ReceivedHello& hello, Descriptor& connection)>;

  // Listens on an abstract socket with a random name.
  static Result<std::unique_ptr<LaneDesk>> open(boost::asio::io_context& context, Attach attach);
  LaneDesk(const LaneDesk&) = delete;
  LaneDesk& operator=(const LaneDesk&) = delete;

  // Replaces the owner's earlier offer. Over all its offers, an owner gets one lane for each seat,
  // and the box reads one file of its memory. Otherwise the box would pay for the pages of any
  // number of files.
  Offer offer(uint64_t owner, std::vector<Seat> seats);
  // Withdraws the owner's offer, if there is one, and forgets what the owner has asked for.
  void withdraw(uint64_t owner);
  // Withdraws the offers that share this memory, which is about to be freed.
  void withdraw_memory(const NumaArena& memory);

  // Maximum number of connections that have not sent their hello. A further one displaces the
  // oldest, so that silent programs cannot take all places for long.
  static constexpr size_t kPendingMax = 64;

 private:
  struct Promise {
    uint64_t owner = 0;
    std::vector<Seat> seats;
  };
  // The requests of an owner, over all its offers.
  struct Asked {
    std::set<uint32_t> seats;                             // indices in Promise::seats
    std::optional<std::pair<uint64_t, uint64_t>> memory;  // device and inode of its first file

    bool is_first_memory(const Descriptor& file);
  };
  using Pending = std::list<boost::asio::posix::stream_descriptor>;

  LaneDesk(boost::asio::io_context& context, std::string name, Descriptor socket, Attach attach);
  void wait();
  void accept_all();
  void pause();
  void wait_for_hello(Pending::iterator pending);
  void take_hello(Pending::iterator pending);
  Status seat(const nic::ReceivedHello& received, Descriptor& connection);
  void end_offer(uint64_t owner);

  std::string name_;
  Attach attach_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer pause_;
  Pending pending_;  // oldest first
  std::map<nic::LaneToken, Promise> promises_;
  std::map<uint64_t, Asked> asked_;  // by owner
};

}  // namespace pbox::pipelines
