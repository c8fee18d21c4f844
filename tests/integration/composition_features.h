// The features that test_service_composition.cc tries in pairs, and how a job uses each of them.
#pragma once

#include "pbox/pbox.h"

namespace pbox::test {

inline constexpr float kBound = 100;  // guard_max_abs

enum class Keys { kNone, kAuthenticate, kEncrypt };

struct Trial {
  pbox_options options{};
  pbox_dtype dtype = PBOX_F32;
  pbox_compression compression = PBOX_COMPRESSION_NONE;
  bool rejoins = false, restores = false, relayed = false, traced = false, has_table = false;
  bool has_models = false;  // a second tensor has a model of its own
  Keys keys = Keys::kNone;

  void need_optimize() { options.mode = PBOX_MODE_OPTIMIZE; }
};

// Features of one group exclude each other by their nature.
struct Feature {
  const char* name;
  const char* group;
  void (*apply)(Trial& trial);
  // Options that the feature needs. The other feature of the pair may override them.
  bool needs_optimize = false;
  bool needs_no_recovery = false;
};

inline void use_model(Trial& trial, pbox_sync model) {
  trial.options.sync = model;
  trial.options.staleness = model == PBOX_SYNC_ASP || model == PBOX_SYNC_DROP ? 0 : 1;
  trial.options.quorum = model == PBOX_SYNC_DROP ? 2 : 0;
}

// Only the last round has a value beyond the bound.
inline void use_guard(Trial& trial, pbox_guard guard) {
  trial.options.guard = guard;
  trial.options.guard_max_abs = kBound;
}

inline constexpr Feature kFeatures[] = {
    {"mode aggregate", "mode", [](Trial& t) { t.options.mode = PBOX_MODE_AGGREGATE; }},
    {"mode optimize", "mode", [](Trial& t) { t.options.mode = PBOX_MODE_OPTIMIZE; }},
    {"mode collective", "mode", [](Trial& t) { t.options.mode = PBOX_MODE_COLLECTIVE; }},
    {"model asp", "model", [](Trial& t) { use_model(t, PBOX_SYNC_ASP); }, true, true},
    {"model ssp", "model", [](Trial& t) { use_model(t, PBOX_SYNC_SSP); }, true, true},
    {"model essp", "model", [](Trial& t) { use_model(t, PBOX_SYNC_ESSP); }, true, true},
    {"model pssp", "model", [](Trial& t) { use_model(t, PBOX_SYNC_PSSP); }, true, true},
    {"model dpssp", "model", [](Trial& t) { use_model(t, PBOX_SYNC_DPSSP); }, true, true},
    {"model drop", "model", [](Trial& t) { use_model(t, PBOX_SYNC_DROP); }, true, true},
    {"model adaptive", "model", [](Trial& t) { use_model(t, PBOX_SYNC_ADAPTIVE); }, true, true},
    {"models by tensor", "model", [](Trial& t) { t.has_models = true; }, true, true},
    {"numerics ordered", "numerics", [](Trial& t) { t.options.numerics = PBOX_NUMERICS_ORDERED; }},
    {"delivery pull", "delivery", [](Trial& t) { t.options.delivery = PBOX_DELIVERY_PULL; }},
    {"priorities forward-order", "priorities",
     [](Trial& t) { t.options.priority_policy = PBOX_PRIORITY_FORWARD_ORDER; }},
    {"priorities fifo", "priorities",
     [](Trial& t) { t.options.priority_policy = PBOX_PRIORITY_FIFO; }},
    {"weighted", "weighted",
     [](Trial& t) {
       t.options.weighted = 1;
       t.options.reduction = PBOX_MEAN;
     }},
    {"f16", "dtype", [](Trial& t) { t.dtype = PBOX_F16; }},
    {"bf16", "dtype", [](Trial& t) { t.dtype = PBOX_BF16; }},
    {"compression q8", "compression", [](Trial& t) { t.compression = PBOX_COMPRESSION_Q8; }},
    {"compression q4", "compression", [](Trial& t) { t.compression = PBOX_COMPRESSION_Q4; }},
    {"compression auto", "compression", [](Trial& t) { t.compression = PBOX_COMPRESSION_AUTO; }},
    {"on_worker_lost partial", "lost",
     [](Trial& t) { t.options.on_worker_lost = PBOX_LOST_PARTIAL; }},
    {"on_worker_lost abort", "lost", [](Trial& t) { t.options.on_worker_lost = PBOX_LOST_ABORT; }},
    {"min_world_size", "lost",
     [](Trial& t) {
       t.options.on_worker_lost = PBOX_LOST_PARTIAL;
       t.options.min_world_size = 1;
     }},
    {"recovery copy", "recovery", [](Trial& t) { t.options.recovery = PBOX_RECOVERY_COPY; }},
    {"recovery none", "recovery", [](Trial& t) { t.options.recovery = PBOX_RECOVERY_NONE; }},
    {"replicas 1", "replicas", [](Trial& t) { t.options.replicas = 1; }, true},
    {"a rank that rejoins", "rejoin", [](Trial& t) { t.rejoins = true; }},
    {"guard reject", "guard", [](Trial& t) { use_guard(t, PBOX_GUARD_REJECT); }},
    {"guard zero", "guard", [](Trial& t) { use_guard(t, PBOX_GUARD_ZERO); }},
    {"restore", "restore", [](Trial& t) { t.restores = true; }, true},
    {"[upstream]", "upstream", [](Trial& t) { t.relayed = true; }},
    {"tables", "tables", [](Trial& t) { t.has_table = true; }, true},
    {"trace", "trace", [](Trial& t) { t.traced = true; }},
    {"keys", "keys", [](Trial& t) { t.keys = Keys::kAuthenticate; }},
    {"keys that encrypt", "keys", [](Trial& t) { t.keys = Keys::kEncrypt; }},
};

}  // namespace pbox::test
