// The epochs of a box in a cluster. Blocks of epochs are reserved in the cluster's store by
// transaction, so no two boxes ever use the same one. Epochs are handed out from memory and the
// box's own disk, so no job waits for the store while a block lasts. Reserved blocks survive a
// restart of the box. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <deque>
#include <memory>
#include <string>

#include "appliance/cluster/environment.h"
#include "appliance/cluster/store.h"
#include "appliance/storage/epoch_store.h"

namespace pbox::cluster {

class EpochPool : public storage::Epochs {
 public:
  static constexpr uint32_t kBlock = 64;
  static constexpr uint32_t kSpareMin = 32;  // another block is reserved when fewer are left

  // All arguments passed by reference outlive the pool; `store` must have been started. `owner` is
  // one word that names cluster and box: blocks reserved for another owner, in a state folder that
  // was copied, are not used.
  EpochPool(boost::asio::io_context& context, Store& store, storage::Disk& disk,
            storage::EpochStore& given, std::string owner);
  ~EpochPool() override;

  // Fails with kUnavailable if no epoch above `floor` is reserved; a block is then being requested.
  // A floor above all epochs that any box has reserved counts towards kSkippedMax.
  Result<uint32_t> next(uint32_t floor) override;
  uint32_t newest() const override { return given_.newest(); }

  uint32_t spare() const;  // epochs that are reserved and not used yet

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
  storage::Disk& disk_;
  storage::EpochStore& given_;
  std::string owner_;
  Timer retry_;
  std::deque<Block> blocks_;  // ascending; the first one may be partly used
  uint32_t floor_ = 0;        // the next block must lie above it
  uint32_t too_high_ = 0;     // a floor that the store has shown to be too high; 0 if none
  uint32_t skipped_ = 0;      // because of floors above all reserved epochs; at most kSkippedMax
  bool reserving_ = false;
  std::string error_;  // why the last attempt to reserve failed
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::cluster
