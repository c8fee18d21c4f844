// Where snapshots are kept, as control sees it. Every operation takes as long as the disk takes.
// Those with a `done` end with one call of it on the control thread. Errors name the file and what
// is wrong with it.
#pragma once

#include <functional>
#include <string>

#include "appliance/snapshot/part_file.h"

namespace pbox::snapshot {

class SnapshotStore {
 public:
  virtual ~SnapshotStore() = default;

  // Reserves a number for a new snapshot of the job. No other snapshot of the job gets the same
  // number.
  virtual void begin(const std::string& job, std::function<void(Result<uint64_t>)> done) = 0;

  // Writes the file of one part.
  virtual void write_part(uint64_t number, PartHead head, Cuts cuts,
                          std::function<void(Result<PartFile>)> done) = 0;

  // Completes a snapshot whose parts are all written. kNotFound: a part's file is not visible to
  // this box. Several boxes must share the folder. Removes all but the last two snapshots of the
  // job.
  virtual void finish(Manifest manifest, std::function<void(Status)> done) = 0;

  // Removes the files of a snapshot that was not completed and never will be.
  virtual void discard(const std::string& job, uint64_t number) = 0;

  // Reads the state with which a part starts. kNotFound: there is no snapshot of that number.
  // kMismatch: it is damaged, or the job's tensors, chunks or optimizer differ.
  virtual void load(PartHead part, Choice choice, std::function<void(Result<Restored>)> done) = 0;
};

}  // namespace pbox::snapshot
