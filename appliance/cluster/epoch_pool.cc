#include "appliance/cluster/epoch_pool.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "appliance/storage/replace_file.h"
#include "base/check.h"

namespace pbox::cluster {
namespace {

constexpr char kKey[] = "epochs/reserved";  // the greatest epoch that any box has reserved
constexpr char kPoolName[] = "epoch-blocks";
constexpr char kNotAsked[] = "the cluster's store has not answered yet";

bool read_epoch(const std::string& text, uint32_t& epoch) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, epoch);
  return error == std::errc() && stop == end;
}

}  // namespace

EpochPool::EpochPool(boost::asio::io_context& context, Store& store, storage::Disk& disk,
                     storage::EpochStore& given, std::string owner)
    : store_(store),
      disk_(disk),
      given_(given),
      owner_(std::move(owner)),
      retry_(context),
      error_(kNotAsked) {
  load();
  if (spare() < kSpareMin) reserve();
}

EpochPool::~EpochPool() {
  *alive_ = false;
}

// The file reads "1c291ca3 rack/box 65 128 193 256". A file that cannot be read is ignored; the
// only loss is the epochs reserved in it.
void EpochPool::load() {
  const auto text = disk_.read(kPoolName);
  if (!text || !text->has_value() || (*text)->size() < 9) return;
  const std::string body = (*text)->substr(9);
  if (storage::checksum(body) + " " != (*text)->substr(0, 9)) return;
  std::istringstream words(body);
  std::string owner;
  if (!(words >> owner) || owner != owner_) return;
  for (Block block; words >> block.first >> block.last;) blocks_.push_back(block);
  drop_used();
}

// An error is ignored: without the file a restart only reserves a new block.
void EpochPool::save() const {
  std::string body = owner_;
  for (const Block& block : blocks_) {
    body.append(" ").append(std::to_string(block.first));
    body.append(" ").append(std::to_string(block.last));
  }
  static_cast<void>(storage::replace_file(disk_, kPoolName, storage::checksum(body) + " " + body));
}

void EpochPool::drop_used() {
  while (!blocks_.empty() && blocks_.front().last <= given_.newest()) blocks_.pop_front();
}

uint32_t EpochPool::spare() const {
  uint32_t count = 0;
  for (const Block& block : blocks_) {
    count += block.last - std::min(block.last, std::max(block.first - 1, given_.newest()));
  }
  return count;
}

Result<uint32_t> EpochPool::next(uint32_t floor) {
  const uint32_t beyond = std::max(floor, given_.newest());
  const auto block = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](const Block& each) { return each.last > beyond; });
  if (block == blocks_.end()) {
    if (too_high_ != 0 && floor >= too_high_) {
      too_high_ = 0;  // asked again, another box may have reserved it
      return storage::too_high(floor);
    }
    floor_ = beyond;
    reserve();
    return Error{ErrorCode::kUnavailable,
                 "no epoch above " + std::to_string(beyond) +
                     " is reserved for this box, and none can be reserved now: " + error_};
  }
  const auto epoch = given_.next_above(std::max(beyond, block->first - 1));
  PBOX_CHECK(!epoch || (*epoch >= block->first && *epoch <= block->last));
  drop_used();
  if (spare() < kSpareMin) reserve();
  return epoch;
}

void EpochPool::reserve() {
  if (reserving_) return;
  reserving_ = true;
  store_.get(kKey, [this, alive = alive_](const Result<Snapshot>& snapshot) {
    if (!*alive) return;
    if (snapshot) return claim(*snapshot);
    error_ = snapshot.error().message;
    reserve_later();
  });
}

void EpochPool::reserve_later() {
  PBOX_CHECK(reserving_);
  retry_.after(kStoreRetry, [this] {
    reserving_ = false;
    reserve();
  });
}

void EpochPool::claim(const Snapshot& snapshot) {
  PBOX_CHECK(reserving_);
  uint32_t reserved = 0;
  Condition unchanged{kKey, 0};
  if (!snapshot.entries.empty()) {
    const KeyValue& entry = snapshot.entries.front();
    unchanged = {entry.key, entry.mod_revision};
    if (entry.key != kKey || !read_epoch(entry.value, reserved)) {
      error_ = "the key '" + entry.key + "' of the cluster's store holds '" + entry.value +
               "', which is not an epoch; set " + kKey + " to a number above all epochs in use";
      return reserve_later();
    }
  }
  const uint32_t known = std::max(reserved, given_.newest());
  const uint32_t ahead = floor_ - std::min(floor_, known);
  if (ahead > kSkippedMax - skipped_) {
    too_high_ = std::exchange(floor_, 0);
    reserving_ = false;
    return;
  }
  const uint32_t last = std::max(known, floor_);
  if (last > UINT32_MAX - kBlock) {
    error_ = "all epochs are used up; stop every worker of the cluster, then delete " +
             std::string(kKey) + " from the cluster's store";
    return reserve_later();
  }
  const Block block{last + 1, last + kBlock};
  PBOX_CHECK(block.first > given_.newest());
  store_.commit({{unchanged}, {{kKey, std::to_string(block.last), false}}, {}},
                [this, alive = alive_, block, ahead](const Result<Outcome>& outcome) {
                  if (!*alive) return;
                  if (!outcome) {  // the block may be lost, but is never used twice
                    error_ = outcome.error().message;
                    return reserve_later();
                  }
                  reserving_ = false;
                  if (!outcome->committed) return reserve();  // another box committed first
                  error_ = kNotAsked;
                  skipped_ += ahead;
                  blocks_.push_back(block);
                  save();
                });
}

}  // namespace pbox::cluster
