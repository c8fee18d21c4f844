// pboxctl snapshot, snapshots and restore: takes a snapshot of a job, lists snapshots, and begins a
// job with one.
#include <unistd.h>

#include <boost/program_options.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <thread>

#include "appliance/snapshot/folder.h"
#include "tools/pboxctl/admin_client.h"
#include "tools/pboxctl/box_config.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
namespace snapshot = pbox::snapshot;
using Json = nlohmann::json;

constexpr std::chrono::milliseconds kProgressTick{100};

options::options_description snapshot_options() {
  auto description = admin_options();
  description.add_options()("timeout",
                            options::value<double>()->default_value(600)->value_name("SECONDS"),
                            "time limit of the snapshot");
  return description;
}

std::string progress(const Json& page) {
  const std::string state = text_of(page, "state");
  if (state == "cutting") {
    return "copied " + std::to_string(static_cast<uint64_t>(number_of(page, "chunks_copied"))) +
           " of " + std::to_string(static_cast<uint64_t>(number_of(page, "chunks"))) + " chunks";
  }
  if (state == "writing") {
    return "written " + std::to_string(static_cast<uint64_t>(number_of(page, "parts_written"))) +
           " of " + std::to_string(static_cast<uint64_t>(number_of(page, "parts"))) + " parts";
  }
  return state;
}

int await_end(const options::variables_map& given, const std::string& path, bool as_json) {
  std::string shown;
  for (;;) {
    const auto page = fetch(given, path);
    if (!page) return kFailed;
    const std::string state = text_of(*page, "state");
    if (state == "done" || state == "failed") {
      if (as_json) std::cout << page->dump() << '\n';
      if (state == "failed") {
        std::cerr << "pboxctl: no snapshot was taken: " << text_of(*page, "error") << '\n';
        return kFailed;
      }
      if (!as_json) {
        std::printf("snapshot %.0f of job %s: %.0f steps, %s\n", number_of(*page, "number"),
                    text_of(*page, "job").c_str(), number_of(*page, "steps"),
                    in_units(number_of(*page, "bytes"), 1 << 20, "MiB").c_str());
      }
      return kDone;
    }
    const std::string now = progress(*page);
    if (now != shown) std::cerr << now << '\n';
    shown = now;
    std::this_thread::sleep_for(kProgressTick);
  }
}

int take(const options::variables_map& given, const Words& more) {
  const bool as_json = wants_json(given);
  if (more.empty()) return complain("snapshot", "name the job, as `pboxctl jobs` lists it");
  const std::string path = "/api/v1/jobs/" + in_path(more[0]) + "/snapshot";
  const auto begun = post(given, path, Json{{"timeout_s", given["timeout"].as<double>()}}.dump());
  if (!begun) {
    std::cerr << "pboxctl: " << begun.error().message << '\n';
    return kFailed;
  }
  return await_end(given, path, as_json);
}

// Returns the options that name the folder of the snapshots.
options::options_description folder_options() {
  options::options_description description("Options");
  description.add_options()("config", options::value<std::string>()->value_name("FILE"),
                            "the box's configuration, whose snapshots.directory is used");
  description.add_options()("directory", options::value<std::string>()->value_name("FOLDER"),
                            "folder of the snapshots, instead of a configuration");
  return description;
}

options::options_description snapshots_options() {
  auto description = folder_options();
  description.add_options()("verify", "read every byte and compare checksums");
  add_output_option(description);
  description.add_options()("help,h", "print this text");
  return description;
}

uint64_t bytes_of(const snapshot::Manifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& part : manifest.parts) bytes += part.bytes;
  return bytes;
}

Json to_json(const snapshot::Manifest& manifest) {
  Json parts = Json::array();
  for (const auto& part : manifest.parts) {
    parts.push_back({{"box", part.box}, {"file", part.name}, {"bytes", part.bytes}});
  }
  return {{"job", manifest.job},           {"number", manifest.number},   {"steps", manifest.steps},
          {"taken_at", manifest.taken_at}, {"bytes", bytes_of(manifest)}, {"parts", parts}};
}

void print(const std::vector<snapshot::Manifest>& list) {
  std::printf("%-24s %8s %10s %10s %6s  %s\n", "JOB", "NUMBER", "STEPS", "SIZE", "PARTS", "TAKEN");
  for (const auto& one : list) {
    std::printf("%-24s %8llu %10llu %10s %6zu  %s\n", one.job.c_str(),
                static_cast<unsigned long long>(one.number),
                static_cast<unsigned long long>(one.steps),
                in_units(static_cast<double>(bytes_of(one)), 1 << 20, "MiB").c_str(),
                one.parts.size(), one.taken_at.c_str());
  }
}

// Returns the folder of the snapshots. If the configuration is wrong or names none, prints the
// reason and returns an empty string.
std::string directory_of(const options::variables_map& given) {
  if (given.contains("directory")) return given["directory"].as<std::string>();
  const std::string file = given.contains("config") ? given["config"].as<std::string>() : "";
  const auto outcome = read_config(file, {});
  for (const auto& error : outcome.errors) std::cerr << "pboxctl: " << error << '\n';
  if (!outcome.config) return "";
  if (outcome.config->snapshots.directory.empty()) {
    std::cerr << "pboxctl: the box keeps no snapshots (snapshots.directory = none)\n";
  }
  return outcome.config->snapshots.directory;
}

int list_all(const options::variables_map& given, const Words& more) {
  const bool as_json = wants_json(given);
  const std::string directory = directory_of(given);
  if (directory.empty()) return kFailed;
  std::vector<pbox::Error> damaged;
  std::vector<snapshot::Manifest> found;
  for (const std::string& job : more.empty() ? snapshot::jobs(directory) : more) {
    const auto of_job = snapshot::list(directory, job, damaged);
    found.insert(found.end(), of_job.begin(), of_job.end());
  }
  for (const auto& manifest : found) {
    if (!given.contains("verify")) break;
    const pbox::Status whole = snapshot::verify(directory, manifest);
    if (!whole) damaged.push_back(whole.error());
  }
  if (as_json) {
    Json page = Json::array();
    for (const auto& manifest : found) page.push_back(to_json(manifest));
    std::cout << Json{{"snapshots", page}}.dump() << '\n';
  } else if (found.empty()) {
    std::cout << "no snapshots in " << directory << '\n';
  } else {
    print(found);
  }
  for (const auto& error : damaged) std::cerr << "pboxctl: " << error.message << '\n';
  return damaged.empty() ? kDone : kFailed;
}

options::options_description restore_options() {
  auto description = folder_options();
  description.add_options()("snapshot", options::value<uint64_t>()->value_name("NUMBER"),
                            "use this snapshot instead of the newest");
  add_output_option(description);
  description.add_options()("help,h", "print this text");
  return description;
}

// Returns the snapshot that --snapshot names, or the newest one. If there is none, prints the
// reason and returns nothing.
std::optional<snapshot::Manifest> choose(const options::variables_map& given,
                                         const std::string& directory, const std::string& job) {
  std::vector<pbox::Error> damaged;
  const auto found = snapshot::list(directory, job, damaged);
  for (const auto& error : damaged) std::cerr << "pboxctl: " << error.message << '\n';
  std::string numbers;
  for (const auto& manifest : found) {
    numbers += (numbers.empty() ? "" : ", ") + std::to_string(manifest.number);
  }
  if (found.empty()) {
    std::cerr << "pboxctl: no snapshot of job '" << job << "' in " << directory
              << "; `pboxctl snapshots` lists all\n";
    return std::nullopt;
  }
  if (!given.contains("snapshot")) return found.back();
  for (const auto& manifest : found) {
    if (manifest.number == given["snapshot"].as<uint64_t>()) return manifest;
  }
  std::cerr << "pboxctl: job '" << job << "' has no snapshot " << given["snapshot"].as<uint64_t>()
            << " in " << directory << "; it has " << numbers << '\n';
  return std::nullopt;
}

// Runs the program with the snapshot's number in its environment, so that all ranks and boxes use
// the same snapshot. Returns only if the program cannot be run.
int begin(const std::string& job, const snapshot::Manifest& manifest, const Words& program) {
  setenv("PBOX_JOB", job.c_str(), 1);
  setenv("PBOX_RESTORE", std::to_string(manifest.number).c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : program) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::cout.flush();
  execvp(words[0], words.data());
  std::cerr << "pboxctl: cannot run " << program[0] << ": " << std::strerror(errno) << '\n';
  return kFailed;
}

int restore(const options::variables_map& given, const Words& more) {
  const bool as_json = wants_json(given);
  if (more.empty()) return complain("restore", "name the job, as `pboxctl snapshots` lists it");
  const std::string directory = directory_of(given);
  if (directory.empty()) return kFailed;
  const auto manifest = choose(given, directory, more[0]);
  if (!manifest) return kFailed;
  if (const pbox::Status whole = snapshot::verify(directory, *manifest); !whole) {
    std::cerr << "pboxctl: " << whole.error().message
              << "; try an older snapshot with --snapshot NUMBER\n";
    return kFailed;
  }
  std::cerr << "snapshot " << manifest->number << " of job " << manifest->job << ", after "
            << manifest->steps << " steps, taken at " << manifest->taken_at << ", is whole\n";
  const Words program(more.begin() + 1, more.end());
  if (!program.empty()) return begin(more[0], *manifest, program);
  if (as_json) {
    std::cout << to_json(*manifest).dump() << '\n';
  } else {
    std::cout << "PBOX_RESTORE=" << manifest->number << '\n';
  }
  return kDone;
}

}  // namespace

const Command kRestore = {
    "restore",
    "JOB [options] [-- PROGRAM [words]]",
    "begin a job with one of its snapshots",
    "Finds the newest snapshot of a job, verifies every byte of it, and runs a program with "
    "PBOX_JOB"
    "\nand PBOX_RESTORE set, so that the job begins with the snapshot. The program is a rank, or a"
    "\nlauncher of ranks. Without a program, prints PBOX_RESTORE=NUMBER, for use as"
    "\n`env $(pboxctl restore JOB) PROGRAM`. Reads the folder, so no daemon need run yet. The "
    "boxes of"
    "\nthe job must use the same folder.",
    restore_options,
    restore,
    Command::More::kJobAndProgram};

const Command kSnapshot = {
    "snapshot",
    "JOB [options]",
    "save a job's weights and optimizer state to disk",
    "Takes a snapshot of a job in mode optimize: its weights and its optimizer state. All boxes "
    "that"
    "\nhave a part of the job cut between the same two steps, and the job continues meanwhile. "
    "Returns"
    "\nwhen everything is on disk, in snapshots.directory. The last two snapshots of a job are "
    "kept. A"
    "\njob started with PBOX_RESTORE=latest, or the number, continues from there.",
    snapshot_options,
    take,
    Command::More::kJob};

const Command kSnapshots = {
    "snapshots",
    "[JOB] [options]",
    "list snapshots",
    "Lists the snapshots in a box's snapshots.directory, of one job or of "
    "all jobs. Reads the folder, so\nno daemon need run. The exit status is "
    "1 if a snapshot is damaged.",
    snapshots_options,
    list_all,
    Command::More::kJob};

}  // namespace pboxctl
