// The upper box to which this box sends its sums ([upstream] of the configuration): in each job
// this box is one of its workers, through libpbox's C ABI like any other worker. BoxBackups does
// the same for the backup boxes that keep copies of this box's parts, where this box is the only
// worker.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "appliance/control/upstream.h"
#include "config/config.h"

namespace pbox::relay {

// Created and used on the thread that runs `context`, which must outlive this object and all
// relays.
class BoxUpstream : public control::Upstream {
 public:
  // `keys`: folder of this box's keys; empty if it has none. `on_done` is called after each change
  // that a relay reports, to carry out what the change has caused.
  BoxUpstream(boost::asio::io_context& context, config::Upstream settings, std::string keys,
              std::function<void()> on_done);
  std::unique_ptr<control::Relay> join(control::RelaySpec spec,
                                       std::function<void(Status)> on_change) override;

 private:
  boost::asio::io_context& context_;
  config::Upstream settings_;
  std::string keys_;
  std::function<void()> on_done_;
};

// Like BoxUpstream, for backup boxes.
class BoxBackups : public control::BackupBoxes {
 public:
  BoxBackups(boost::asio::io_context& context, std::string keys, std::function<void()> on_done)
      : context_(context), keys_(std::move(keys)), on_done_(std::move(on_done)) {}
  std::unique_ptr<control::Relay> join(const std::string& address, control::RelaySpec spec,
                                       std::function<void(Status)> on_change) override;

 private:
  boost::asio::io_context& context_;
  std::string keys_;
  std::function<void()> on_done_;
};

}  // namespace pbox::relay
