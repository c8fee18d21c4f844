// Epochs separate what a box did before it was lost from what is done afterwards: packets of an
// older epoch are rejected. Each start and each recovery of a job takes a new epoch, which no job
// of this box has ever had. Used on the control thread.
#pragma once

#include <cstdint>

#include "appliance/storage/disk.h"

namespace pbox::storage {

class Epochs {
 public:
  // Ranks that come back may state epochs that this box does not know, for example after its disk
  // was lost. For the sake of such epochs at most this many are skipped from one start of the box
  // to the next, in total: otherwise a few jobs could use up all epochs by stating high ones.
  static constexpr uint32_t kSkippedMax = 1u << 24;

  virtual ~Epochs() = default;

  // Returns a new epoch, above `floor` and above every earlier one. It is durable and never
  // returned again. After an error the number that was tried is not returned again either.
  // kUnavailable: an epoch may be available later. kInvalidArgument: `floor` is so high that no box
  // can have given it.
  virtual Result<uint32_t> next(uint32_t floor) = 0;
  virtual uint32_t newest() const = 0;  // highest epoch returned so far; 0 if there is none
};

// Returns the error for a floor that is too high.
Error too_high(uint32_t floor);

// The epochs of a single box, kept in one file.
class EpochStore : public Epochs {
 public:
  // `disk` must outlive the store. Returns an error if the file is damaged, because it is then
  // unknown which epochs have been used.
  static Result<EpochStore> open(Disk& disk);

  Result<uint32_t> next(uint32_t floor) override;
  // Like next(), for a floor that is known to be right.
  Result<uint32_t> next_above(uint32_t floor);
  uint32_t newest() const override { return newest_; }

 private:
  EpochStore(Disk& disk, uint32_t newest) : disk_(&disk), newest_(newest) {}

  Disk* disk_;
  uint32_t newest_;
  uint32_t skipped_ = 0;  // because of floors above the newest epoch; at most kSkippedMax
};

}  // namespace pbox::storage
