// Default options, and options from the environment as launchers set it (torchrun: RANK,
// WORLD_SIZE).
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "pbox/pbox.h"

namespace {

// These three return false if the variable is set to something that is not allowed. A number must
// be in [0, 2^32).
bool read_number(const char* name, uint32_t* value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return true;
  char* end = nullptr;
  errno = 0;
  const unsigned long long number = std::strtoull(text, &end, 10);
  if (*end != '\0' || errno != 0 || *text == '-' || number > UINT32_MAX) return false;
  *value = static_cast<uint32_t>(number);
  return true;
}

// Any number is accepted here; pbox_create checks the range.
bool read_fraction(const char* name, float* value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return true;
  char* end = nullptr;
  *value = std::strtof(text, &end);
  return *end == '\0';
}

// The value must be one of the words, which stand for 0, 1, ...
bool read_word(const char* name, std::initializer_list<const char*> words, int32_t* value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return true;
  const auto found = std::find_if(words.begin(), words.end(), [text](const char* word) {
    return std::strcmp(word, text) == 0;
  });
  *value = static_cast<int32_t>(found - words.begin());
  return found != words.end();
}

// The options of the consistency model.
bool read_sync(pbox_options* options) {
  return read_word("PBOX_SYNC", {"bsp", "asp", "ssp", "essp", "pssp", "dpssp", "drop"},
                   &options->sync) &&
         read_number("PBOX_STALENESS", &options->staleness) &&
         read_fraction("PBOX_SYNC_PROBABILITY", &options->sync_probability) &&
         read_word("PBOX_RELEASE", {"soft", "lazy"}, &options->release) &&
         read_word("PBOX_READS", {"fresh", "cached"}, &options->reads) &&
         read_number("PBOX_QUORUM", &options->quorum);
}

void read_text(const char* name, const char** value) {
  const char* text = std::getenv(name);
  if (text != nullptr && *text != '\0') *value = text;
}

}  // namespace

void pbox_options_init(pbox_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
  options->box = "127.0.0.1:9541";
  options->job = "default";
  options->world_size = 1;
  options->join_timeout_ms = 60'000;
  options->wait_timeout_ms = 60'000;
  options->port = "socket";
  options->recover_timeout_ms = 60'000;
  options->sync_probability = 1;
}

pbox_status pbox_options_from_environment(pbox_options* options) {
  if (options == nullptr) return PBOX_INVALID_ARGUMENT;
  pbox_options_init(options);
  read_text("PBOX_BOX", &options->box);
  read_text("PBOX_JOB", &options->job);
  read_text("PBOX_PORT", &options->port);
  read_text("PBOX_RESTORE", &options->restore);
  // The more specific name is read last, so it wins.
  const bool sound =
      read_number("RANK", &options->rank) && read_number("PBOX_RANK", &options->rank) &&
      read_number("WORLD_SIZE", &options->world_size) &&
      read_number("PBOX_WORLD_SIZE", &options->world_size) &&
      read_number("PBOX_WINDOW_BYTES", &options->window_bytes) &&
      read_number("PBOX_CHUNK_BYTES", &options->chunk_bytes) &&
      read_number("PBOX_JOIN_TIMEOUT_MS", &options->join_timeout_ms) &&
      read_number("PBOX_WAIT_TIMEOUT_MS", &options->wait_timeout_ms) &&
      read_word("PBOX_RECOVERY", {"copy", "none"}, &options->recovery) &&
      read_number("PBOX_RECOVER_TIMEOUT_MS", &options->recover_timeout_ms) &&
      read_word("PBOX_ON_WORKER_LOST", {"wait", "partial", "abort"}, &options->on_worker_lost) &&
      read_number("PBOX_REJOIN", &options->rejoin) && read_sync(options) &&
      read_word("PBOX_PRIORITY_POLICY", {"explicit", "forward-order", "fifo"},
                &options->priority_policy) &&
      read_word("PBOX_DELIVERY", {"broadcast", "pull"}, &options->delivery) &&
      read_word("PBOX_NUMERICS", {"fast", "ordered"}, &options->numerics) &&
      read_number("PBOX_REPLICAS", &options->replicas);
  return sound ? PBOX_OK : PBOX_INVALID_ARGUMENT;
}
