// Epochs: the fence between what a box did before it was lost and what is done after. Each start
// and each recovery of a job takes a new one, which no job of this box, now or ever, has had.
// Control thread.
#pragma once

#include <cstdint>

#include "appliance/control/disk.h"

namespace pbox::appliance {

class EpochStore {
 public:
  // `disk` outlives the store. An error if what is there is damaged: then nobody knows which epochs
  // have been used.
  static Result<EpochStore> open(Disk& disk);

  // A new epoch, above `floor` and every earlier one, and durable: it is never given out again,
  // whatever happens. After an error the number that was tried is not given out either.
  Result<uint32_t> next(uint32_t floor);
  uint32_t newest() const { return newest_; }

 private:
  EpochStore(Disk& disk, uint32_t newest) : disk_(&disk), newest_(newest) {}

  Disk* disk_;
  uint32_t newest_;
};

}  // namespace pbox::appliance
