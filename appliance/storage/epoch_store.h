// Epochs: the fence between what a box did before it was lost and what is done after. Each start
// and each recovery of a job takes a new one, which no job of this box, now or ever, has had.
// Control thread.
#pragma once

#include <cstdint>

#include "appliance/storage/disk.h"

namespace pbox::appliance {

class Epochs {
 public:
  virtual ~Epochs() = default;

  // A new epoch, above `floor` and every earlier one, and durable: it is never given out again,
  // whatever happens. After an error the number that was tried is not given out either.
  // kUnavailable: there may be one later.
  virtual Result<uint32_t> next(uint32_t floor) = 0;
  virtual uint32_t newest() const = 0;  // that was given out
};

// Those of a box that is alone: one file.
class EpochStore : public Epochs {
 public:
  // `disk` outlives the store. An error if what is there is damaged: then nobody knows which epochs
  // have been used.
  static Result<EpochStore> open(Disk& disk);

  Result<uint32_t> next(uint32_t floor) override;
  uint32_t newest() const override { return newest_; }

 private:
  EpochStore(Disk& disk, uint32_t newest) : disk_(&disk), newest_(newest) {}

  Disk* disk_;
  uint32_t newest_;
};

}  // namespace pbox::appliance
