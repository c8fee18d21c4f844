// The folder of snapshots. If there are several boxes, it must be on storage that all of them
// share, because a part may be restored by a different box than the one that wrote it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "appliance/snapshot/part_file.h"

namespace pbox::snapshot {

// All functions block for as long as the disk takes. They may run on any thread, but only one at a
// time for the same snapshot.

// Returns DIRECTORY/JOB. Characters that a file name cannot contain are written as %XX.
std::string job_folder(const std::string& directory, const std::string& job);
std::string number_folder(const std::string& directory, const std::string& job, uint64_t number);
std::string part_name(const PartHead& head);  // for example "part-0-of-4"

// Creates an empty folder with the job's next number and returns the number. First removes the
// files of attempts that nothing has written for ten minutes.
Result<uint64_t> make_next(const std::string& directory, const std::string& job);

// Removes the files of a snapshot that was not completed and never will be. Its empty folder stays:
// a box may still be writing into it, so no later snapshot may get its number.
void discard(const std::string& directory, const std::string& job, uint64_t number);

// Writes the manifest, which completes the snapshot. Then removes all but the last two snapshots of
// the job, and older ones that were never completed. One whose manifest is damaged or cannot be
// read is kept. kNotFound: a file that the manifest lists is missing here or has another size.
Status finish(const std::string& directory, const Manifest& manifest);

// Returns the job's complete snapshots by ascending number. Adds an error to `damaged` for each
// manifest that is damaged or cannot be read.
std::vector<Manifest> list(const std::string& directory, const std::string& job,
                           std::vector<Error>& damaged);
// Returns the jobs that have snapshots, sorted by name.
std::vector<std::string> jobs(const std::string& directory);

// Like SnapshotStore::load. Returns kUnavailable soon after `stopped` becomes true.
Result<Restored> load(const std::string& directory, const PartHead& part, const Choice& choice,
                      const std::atomic<bool>& stopped);

// Reads all files of the snapshot and compares their checksums with the manifest's.
Status verify(const std::string& directory, const Manifest& manifest);

}  // namespace pbox::snapshot
