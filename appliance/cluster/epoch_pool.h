// Epochs of a box among others: blocks of them are reserved in the cluster's store by transaction,
// so that no two boxes ever have the same one, and given out from memory and the box's own disk, so
// that no job waits for the store while a block lasts. What is reserved outlives a restart of the
// box. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <string>

#include "appliance/cluster/store.h"
#include "appliance/storage/epoch_store.h"

namespace pbox::cluster {

class EpochPool : public appliance::Epochs {
 public:
  static constexpr uint32_t kBlock = 64;
  static constexpr uint32_t kSpareMin = 32;  // with fewer left another block is reserved

  // All outlive the pool; `store` was started. `owner`, a word, names cluster and box: what was
  // reserved for another, in a folder that was copied, is not touched.
  EpochPool(boost::asio::io_context& context, Store& store, appliance::Disk& disk,
            appliance::EpochStore& given, std::string owner);
  ~EpochPool() override;

  // kUnavailable if none above `floor` is reserved now: one is being asked for.
  Result<uint32_t> next(uint32_t floor) override;
  uint32_t newest() const override { return given_.newest(); }

  uint32_t spare() const;  // reserved, and not given out

 private:
  struct Block {
    uint32_t first = 0;
    uint32_t last = 0;  // inclusive
  };

  void load();
  void save() const;
  void reserve();
  void reserve_later();
  void claim(const Snapshot& snapshot);
  void drop_used();

  Store& store_;
  appliance::Disk& disk_;
  appliance::EpochStore& given_;
  std::string owner_;
  boost::asio::steady_timer retry_;
  std::deque<Block> blocks_;  // ascending; the first may be used in part
  uint32_t floor_ = 0;        // a block above it is wanted
  bool reserving_ = false;
  std::string error_;  // of the last try to reserve
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::cluster
