// The control server over real sockets, driven by the test's own io_context.
#pragma once

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/server.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control {

class Service {
 public:
  // The address, the port and the listener of events in `options` are replaced.
  explicit Service(ControlOptions options = {}, const RegistryOptions& limits = {}) {
    disk_ = std::move(*storage::open_state_folder(""));
    epochs_.emplace(*disk_);
    registry_.emplace(limits, host_, *epochs_, parts_);
    options.listen = "127.0.0.1";
    options.port = 0;
    options.on_event = [this](const RegistryEvent& event) { events.push_back(event); };
    server_ = std::move(*ControlServer::start(context, options, *registry_));
  }
  ~Service() {
    server_.reset();
    context.restart();
    context.poll();  // handlers of closed connections
  }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Runs handlers until `done` is true.
  template <typename Done>
  void run_until(Done done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      context.run_one_for(std::chrono::milliseconds(10));
    }
  }
  ControlServer& server() { return *server_; }
  JobRegistry& registry() { return *registry_; }
  bool noted(const std::string& name) const {
    return std::any_of(events.begin(), events.end(),
                       [&](const RegistryEvent& event) { return event.name == name; });
  }
  // Returns the text of the first event of this name; empty if there is none.
  std::string text_of(const std::string& name) const {
    const auto found = std::find_if(events.begin(), events.end(),
                                    [&](const RegistryEvent& event) { return event.name == name; });
    return found == events.end() ? "" : found->text;
  }
  boost::asio::ip::tcp::endpoint endpoint() const {
    return {boost::asio::ip::make_address("127.0.0.1"), server_->port()};
  }

  boost::asio::io_context context;
  std::vector<RegistryEvent> events;

 private:
  SynchronousHost host_{1};
  std::unique_ptr<storage::Disk> disk_;
  std::optional<FickleEpochs> epochs_;
  MovableParts parts_;
  std::optional<JobRegistry> registry_;
  std::unique_ptr<ControlServer> server_;
};

}  // namespace pbox::control
