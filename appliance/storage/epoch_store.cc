#include "appliance/storage/epoch_store.h"

#include <algorithm>
#include <cstdio>

#include "appliance/storage/replace_file.h"
#include "base/check.h"

namespace pbox::storage {
namespace {

constexpr char kName[] = "epoch";

// Returns the file's text, for example "pbox-epoch 17 1c291ca3\n". The checksum covers everything
// before it.
std::string to_text(uint32_t epoch) {
  const std::string text = std::string("pbox-epoch ") + std::to_string(epoch) + " ";
  return text + checksum(text) + "\n";
}

}  // namespace

Result<EpochStore> EpochStore::open(Disk& disk) {
  const auto text = disk.read(kName);
  if (!text) return text.error();
  if (!text->has_value()) return EpochStore(disk, 0);
  uint32_t epoch = 0;
  if (std::sscanf((*text)->c_str(), "pbox-epoch %u", &epoch) != 1 || to_text(epoch) != **text) {
    return Error{
        ErrorCode::kSystem,
        "the file 'epoch' in the folder of [cluster] state_directory is damaged. Stop every "
        "worker that still waits for this box, then delete the file and start again"};
  }
  return EpochStore(disk, epoch);
}

Error too_high(uint32_t floor) {
  return {ErrorCode::kInvalidArgument, "the ranks of the job state epoch " + std::to_string(floor) +
                                           ", which no box can have given; start all ranks again"};
}

Result<uint32_t> EpochStore::next(uint32_t floor) {
  const uint32_t ahead = floor - std::min(floor, newest_);
  PBOX_DCHECK(skipped_ <= kSkippedMax);
  if (ahead > kSkippedMax - skipped_) return too_high(floor);
  skipped_ += ahead;
  return next_above(floor);
}

Result<uint32_t> EpochStore::next_above(uint32_t floor) {
  const uint32_t last = std::max(newest_, floor);
  if (last == UINT32_MAX) {
    return Error{ErrorCode::kResourceExhausted,
                 "all epochs are used up; stop every worker of this box, then delete the file "
                 "'epoch' in the folder of [cluster] state_directory"};
  }
  newest_ = last + 1;
  PBOX_CHECK(newest_ > floor);
  if (const Status status = replace_file(*disk_, kName, to_text(newest_)); !status) {
    return status.error();
  }
  return newest_;
}

}  // namespace pbox::storage
