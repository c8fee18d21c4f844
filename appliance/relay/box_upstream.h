// The box that this one's sums go on to ([upstream] of the configuration): in each job this box is
// one of its workers, through libpbox's C ABI, as any worker is. And the boxes that have copies of
// this one's parts, where it is the only worker.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>

#include "appliance/control/upstream.h"
#include "config/config.h"

namespace pbox::appliance {

// Made and used on the thread that runs `context`, which outlives it and all relays.
class BoxUpstream : public Upstream {
 public:
  // `on_done`: after each change that a relay has told, for what it has set off.
  BoxUpstream(boost::asio::io_context& context, config::Upstream settings,
              std::function<void()> on_done);
  std::unique_ptr<Relay> join(RelaySpec spec, std::function<void(Status)> on_change) override;

 private:
  boost::asio::io_context& context_;
  config::Upstream settings_;
  std::function<void()> on_done_;
};

// As BoxUpstream.
class BoxBackups : public BackupBoxes {
 public:
  BoxBackups(boost::asio::io_context& context, std::function<void()> on_done)
      : context_(context), on_done_(std::move(on_done)) {}
  std::unique_ptr<Relay> join(const std::string& address, RelaySpec spec,
                              std::function<void(Status)> on_change) override;

 private:
  boost::asio::io_context& context_;
  std::function<void()> on_done_;
};

}  // namespace pbox::appliance
