// The folder of snapshots. With several boxes it is on storage that all of them share: a part may
// be restored by another box than the one that wrote it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "appliance/snapshot/part_file.h"

namespace pbox::snapshot {

// All functions block for as long as the disk takes. Any thread; of one snapshot, one at a time.

// DIRECTORY/JOB, with what a file's name cannot have as %XX.
std::string job_folder(const std::string& directory, const std::string& job);
std::string number_folder(const std::string& directory, const std::string& job, uint64_t number);
std::string part_name(const PartHead& head);  // "part-0-of-4"

// Makes an empty folder with the next number.
Result<uint64_t> make_next(const std::string& directory, const std::string& job);

// Writes the manifest, and removes the job's snapshots before the last two, and whatever was begun
// before this one and never finished. kNotFound: a file of it is not here, or has another size.
Status finish(const std::string& directory, const Manifest& manifest);

// Finished ones, by number. Damaged manifests are errors in `damaged`.
std::vector<Manifest> list(const std::string& directory, const std::string& job,
                           std::vector<Error>& damaged);
// Of which there are snapshots, by name.
std::vector<std::string> jobs(const std::string& directory);

// As SnapshotStore::load; gives up with kUnavailable once `stopped`.
Result<Restored> load(const std::string& directory, const PartHead& part, const Choice& choice,
                      const std::atomic<bool>& stopped);

// Every byte of it is what the manifest says.
Status verify(const std::string& directory, const Manifest& manifest);

}  // namespace pbox::snapshot
