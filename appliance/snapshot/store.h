// Where snapshots are kept, as control sees it: everything takes as long as a disk takes, and is
// answered later, by one call of `done` on the control thread. Errors say which file, and what.
#pragma once

#include <functional>
#include <string>

#include "appliance/snapshot/part_file.h"

namespace pbox::snapshot {

class SnapshotStore {
 public:
  virtual ~SnapshotStore() = default;

  // A number for a new snapshot, which nobody else gets.
  virtual void begin(const std::string& job, std::function<void(Result<uint64_t>)> done) = 0;

  // The file of one part.
  virtual void write_part(uint64_t number, PartHead head, Cuts cuts,
                          std::function<void(Result<PartFile>)> done) = 0;

  // All parts are written: now it is a snapshot. kNotFound: not all are here, where other boxes'
  // should be too. Snapshots before the last two of the job are removed.
  virtual void finish(Manifest manifest, std::function<void(Status)> done) = 0;

  // What a part begins with. kNotFound: there is none of that number. kMismatch: it is of another
  // job than this, or damaged.
  virtual void load(PartHead part, Choice choice, std::function<void(Result<Restored>)> done) = 0;
};

}  // namespace pbox::snapshot
