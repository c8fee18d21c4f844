// Default options of a worker and of an optimizer, and options from the environment as launchers
// set it (torchrun: RANK, WORLD_SIZE).
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "pbox/pbox.h"
#include "worker/abi/caller_struct.h"
#include "worker/abi/thread_error.h"

namespace {

using pbox::worker::kOptimizerBytesFirst;
using pbox::worker::kOptionsBytesFirst;
using pbox::worker::store_for_caller;

// Reads variables, each into its option. A variable that is not set, or empty, changes nothing. The
// first one with a value that is not allowed is remembered.
class Environment {
 public:
  void read_text(const char* name, const char** value) {
    if (const char* text = get(name)) *value = text;
  }
  void read_number(const char* name, uint32_t* value) {
    const char* text = get(name);
    if (text == nullptr) return;
    char* end = nullptr;
    errno = 0;
    const unsigned long long number = std::strtoull(text, &end, 10);
    if (*end != '\0' || errno != 0 || std::strchr(text, '-') != nullptr || number > UINT32_MAX) {
      return refuse(name, text, "a whole number from 0 to 4294967295");
    }
    *value = static_cast<uint32_t>(number);
  }
  void read_number_or(const char* name, const char* word, uint32_t meaning, uint32_t* value) {
    const char* text = get(name);
    if (text == nullptr || std::strcmp(text, word) != 0) return read_number(name, value);
    *value = meaning;
  }
  // Any number is accepted here; pbox_create checks the range.
  void read_fraction(const char* name, float* value) {
    const char* text = get(name);
    if (text == nullptr) return;
    char* end = nullptr;
    const float number = std::strtof(text, &end);
    if (*end != '\0') return refuse(name, text, "a number");
    *value = number;
  }
  // The value must be one of the words, which stand for 0, 1, ...
  void read_word(const char* name, std::initializer_list<const char*> words, int32_t* value) {
    const char* text = get(name);
    if (text == nullptr) return;
    const auto found = std::find_if(words.begin(), words.end(), [text](const char* word) {
      return std::strcmp(word, text) == 0;
    });
    if (found != words.end()) {
      *value = static_cast<int32_t>(found - words.begin());
      return;
    }
    std::string expected = "one of";
    for (const char* word : words)
      expected += std::string(word == *words.begin() ? " " : ", ") + word;
    refuse(name, text, expected);
  }

  // Returns a text that names the variable, its value and the remedy; empty if every value is
  // allowed.
  const std::string& error() const { return error_; }

 private:
  static const char* get(const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr || *text == '\0' ? nullptr : text;
  }
  void refuse(const char* name, const char* text, const std::string& expected) {
    if (!error_.empty()) return;
    error_ = "the environment variable " + std::string(name) + " is '" + text + "'; set it to " +
             expected + ", or unset it";
  }

  std::string error_;
};

pbox_options default_options() {
  pbox_options options{};
  options.box = "127.0.0.1:9541";
  options.job = "default";
  options.world_size = 1;
  options.join_timeout_ms = 60'000;
  options.wait_timeout_ms = 60'000;
  options.port = "auto";
  options.recover_timeout_ms = 60'000;
  options.sync_probability = 1;
  return options;
}

void read_environment(Environment& from, pbox_options* options) {
  from.read_text("PBOX_BOX", &options->box);
  from.read_text("PBOX_JOB", &options->job);
  from.read_text("PBOX_PORT", &options->port);
  from.read_text("PBOX_RESTORE", &options->restore);
  // The more specific name is read last, so it wins.
  from.read_number("RANK", &options->rank);
  from.read_number("PBOX_RANK", &options->rank);
  from.read_number("WORLD_SIZE", &options->world_size);
  from.read_number("PBOX_WORLD_SIZE", &options->world_size);
  from.read_number("PBOX_MIN_WORLD_SIZE", &options->min_world_size);
  from.read_number("PBOX_WINDOW_BYTES", &options->window_bytes);
  from.read_number("PBOX_CHUNK_BYTES", &options->chunk_bytes);
  from.read_number("PBOX_JOIN_TIMEOUT_MS", &options->join_timeout_ms);
  from.read_number("PBOX_WAIT_TIMEOUT_MS", &options->wait_timeout_ms);
  from.read_word("PBOX_RECOVERY", {"copy", "none"}, &options->recovery);
  from.read_number("PBOX_RECOVER_TIMEOUT_MS", &options->recover_timeout_ms);
  from.read_word("PBOX_ON_WORKER_LOST", {"wait", "partial", "abort"}, &options->on_worker_lost);
  from.read_number("PBOX_REJOIN", &options->rejoin);
  from.read_word("PBOX_SYNC", {"bsp", "asp", "ssp", "essp", "pssp", "dpssp", "drop", "adaptive"},
                 &options->sync);
  from.read_number("PBOX_STALENESS", &options->staleness);
  from.read_fraction("PBOX_SYNC_PROBABILITY", &options->sync_probability);
  from.read_word("PBOX_RELEASE", {"soft", "lazy"}, &options->release);
  from.read_word("PBOX_READS", {"fresh", "cached"}, &options->reads);
  from.read_number("PBOX_QUORUM", &options->quorum);
  from.read_number_or("PBOX_GRACE_MS", "auto", PBOX_GRACE_AUTO, &options->grace_ms);
  from.read_word("PBOX_LATE_PUSHES", {"drop", "next"}, &options->late_pushes);
  from.read_word("PBOX_PRIORITY_POLICY", {"explicit", "forward-order", "fifo"},
                 &options->priority_policy);
  from.read_word("PBOX_DELIVERY", {"broadcast", "pull"}, &options->delivery);
  from.read_word("PBOX_NUMERICS", {"fast", "ordered"}, &options->numerics);
  from.read_number("PBOX_REPLICAS", &options->replicas);
  from.read_text("PBOX_KEYS", &options->keys);
  from.read_word("PBOX_GUARD", {"flag", "reject", "zero"}, &options->guard);
  from.read_fraction("PBOX_GUARD_MAX_ABS", &options->guard_max_abs);
  from.read_number("PBOX_COLLECTIVE_BYTES", &options->collective_bytes);
  from.read_word("PBOX_COMPRESSION", {"none", "q8", "q4", "auto"}, &options->compression);
}

pbox_optimizer_options default_optimizer(pbox_optimizer kind) {
  pbox_optimizer_options options{};
  options.kind = kind;
  const bool adam = kind == PBOX_ADAM || kind == PBOX_ADAMW;
  options.learning_rate = adam ? 0.001f : 0.01f;  // torch.optim's, for Adam, AdamW and Adagrad
  options.momentum = kind == PBOX_MOMENTUM || kind == PBOX_NESTEROV ? 0.9f : 0.0f;
  options.beta1 = 0.9f;
  options.beta2 = 0.999f;
  options.epsilon = kind == PBOX_ADAGRAD ? 1e-10f : 1e-8f;
  options.weight_decay = kind == PBOX_ADAMW ? 0.01f : 0.0f;
  return options;
}

}  // namespace

void pbox_options_init_sized(pbox_options* options, size_t struct_size) {
  if (options != nullptr) store_for_caller(default_options(), options, struct_size);
}

pbox_status pbox_options_from_environment_sized(pbox_options* options, size_t struct_size) {
  if (options == nullptr) {
    pbox::worker::set_thread_error("options must not be NULL");
    return PBOX_INVALID_ARGUMENT;
  }
  pbox_options found = default_options();
  Environment environment;
  read_environment(environment, &found);
  store_for_caller(found, options, struct_size);
  if (environment.error().empty()) return PBOX_OK;
  pbox::worker::set_thread_error(environment.error());
  return PBOX_INVALID_ARGUMENT;
}

void pbox_optimizer_options_init_sized(pbox_optimizer_options* options, size_t struct_size,
                                       pbox_optimizer kind) {
  if (options != nullptr) store_for_caller(default_optimizer(kind), options, struct_size);
}

// For programs that were built with release 0.1.0, whose functions took no size. New programs get
// the macros of the same names.
extern "C" {
PBOX_API void(pbox_options_init)(pbox_options* options);
PBOX_API pbox_status(pbox_options_from_environment)(pbox_options* options);
PBOX_API void(pbox_optimizer_options_init)(pbox_optimizer_options* options, pbox_optimizer kind);
}

void(pbox_options_init)(pbox_options* options) {
  pbox_options_init_sized(options, kOptionsBytesFirst);
}

pbox_status(pbox_options_from_environment)(pbox_options* options) {
  return pbox_options_from_environment_sized(options, kOptionsBytesFirst);
}

void(pbox_optimizer_options_init)(pbox_optimizer_options* options, pbox_optimizer kind) {
  pbox_optimizer_options_init_sized(options, kOptimizerBytesFirst, kind);
}
