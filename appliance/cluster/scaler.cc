#include "appliance/cluster/scaler.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace pbox::cluster {
namespace {

using Json = nlohmann::json;
using Severity = BoxDirectory::Severity;
using Kind = placement::ScaleDecision::Kind;

constexpr std::chrono::seconds kTick{1};

double seconds_of(Environment::Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

// Returns the memory that the box's jobs, copies of other boxes' parts, kept states and snapshots
// take, in bytes; 0 if the box does not report it.
double memory_used(const BoxRecord& record, const proto::BoxReport& report) {
  if (!report.has_memory_free_bytes()) return 0;
  const auto memory = static_cast<double>(record.job_memory_bytes);
  return std::max(0.0, memory - static_cast<double>(report.memory_free_bytes()));
}

}  // namespace

Scaler::Scaler(boost::asio::io_context& context, Store& store, const BoxDirectory& box_directory,
               PartMaps& maps, Options options)
    : store_(store),
      box_directory_(box_directory),
      part_maps_(maps),
      options_(std::move(options)),
      environment_(Environment::of(context)),
      timer_(context) {
  PBOX_CHECK(options_.report != nullptr && options_.log != nullptr);
  view_.enabled = options_.scales;
  tick();
}

void Scaler::tick() {
  timer_.after(kTick, [this] {
    if (store_.health().up && part_maps_.is_loaded()) {
      begin_as_standby();
      if (options_.scales && box_directory_.leads()) {
        lead();
      } else {
        policy_.reset();
        view_.pressure.reset();
        empty_.clear();
      }
    }
    tick();
  });
}

// Makes this box a standby, once after its start. A box that has parts is in use: it has only been
// restarted.
void Scaler::begin_as_standby() {
  if (std::exchange(has_begun_, true) || !options_.begins_as_standby) return;
  const bool is_new = part_maps_.duty_of(options_.self) == Duty::kTakesParts &&
                      part_maps_.parts_of(options_.self) == 0;
  if (!is_new) return;
  part_maps_.set_duty(options_.self, Duty::kStandby, [this, alive = alive_](const Status& set) {
    if (!*alive) return;
    if (set) {
      return options_.log(Severity::kInfo, "standby",
                          "this box is a standby: it takes no parts until the cluster needs it");
    }
    has_begun_ = false;
  });
}

void Scaler::lead() {
  std::vector<BoxRecord> others = box_directory_.boxes();
  std::erase_if(others, [this](const BoxRecord& box) { return box.name == options_.self; });
  part_maps_.reports().ask(others);
  own_report_ = options_.report();
  if (!policy_) policy_.emplace(options_.rules);
  const auto decision = policy_->step(boxes(), seconds_of(environment_.now()));
  view_.pressure = policy_->pressure();
  if (decision) carry_out(*decision);
  if (!policy_->is_short()) tell_which_may_stop();
}

const proto::BoxReport* Scaler::report_of(const std::string& box) const {
  if (box == options_.self) return &own_report_;
  const auto& all = part_maps_.reports().all();
  const auto found = all.find(box);
  return found == all.end() ? nullptr : &found->second;
}

std::vector<placement::ScaledBox> Scaler::boxes() const {
  std::vector<placement::ScaledBox> boxes;
  for (const BoxRecord& record : box_directory_.boxes()) {
    const proto::BoxReport* report = report_of(record.name);
    if (report == nullptr) {
      boxes.push_back({.name = record.name, .has_reported = false});
      continue;
    }
    const Duty duty = part_maps_.duty_of(record.name);
    boxes.push_back({.name = record.name,
                     .takes_parts = duty == Duty::kTakesParts,
                     .is_standby = duty == Duty::kStandby,
                     .leads = record.name == options_.self,
                     .parts = part_maps_.parts_of(record.name),
                     .memory_bytes = static_cast<double>(record.job_memory_bytes),
                     .memory_used_bytes = memory_used(record, *report),
                     .link_bytes_per_s = static_cast<double>(record.capacity_bytes_per_s),
                     .traffic_bytes_per_s = static_cast<double>(report->traffic_bytes_per_s()),
                     .refusals = report->refusals()});
  }
  return boxes;
}

void Scaler::carry_out(const placement::ScaleDecision& decision) {
  ++view_.counts[static_cast<size_t>(decision.kind)];
  view_.decisions.push_back({environment_.unix_seconds(), decision});
  if (view_.decisions.size() > placement::kDecisionsKept) view_.decisions.pop_front();
  if (decision.kind == Kind::kAskForBox) {
    options_.log(options_.hook ? Severity::kInfo : Severity::kWarning, "box_needed",
                 "the cluster needs another box: " + decision.reason +
                     (options_.hook ? "" : "; start one, or give cluster.scale_hook"));
    return call_hook("scale_out", "", decision.reason);
  }
  const bool is_used = decision.kind == Kind::kUseStandby;
  part_maps_.set_duty(
      decision.box, is_used ? Duty::kTakesParts : Duty::kStandby,
      [this, alive = alive_, decision, is_used](const Status& set) {
        if (!*alive) return;
        const std::string what = "box " + decision.box +
                                 (is_used ? ", a standby, takes parts: " : " becomes a standby: ") +
                                 decision.reason;
        options_.log(set ? Severity::kInfo : Severity::kWarning, "scale",
                     set ? what : what + ": not done, " + set.error().message);
      },
      true);
}

// A standby that has been without parts, and without copies of other boxes' parts, for a while may
// be switched off. The hook is told once, and again by the next leader.
void Scaler::tell_which_may_stop() {
  const auto now = environment_.now();
  std::map<std::string, Empty> empty;
  for (const BoxRecord& record : box_directory_.boxes()) {
    const std::string& name = record.name;
    const proto::BoxReport* report = report_of(name);
    const auto known = empty_.find(name);
    if (report == nullptr) {  // it may only have missed one question
      if (known != empty_.end()) empty.insert(*known);
      continue;
    }
    const bool is_empty = report->jobs().empty() && part_maps_.parts_of(name) == 0 &&
                          memory_used(record, *report) == 0;
    if (part_maps_.duty_of(name) != Duty::kStandby || !is_empty) continue;
    Empty& entry = empty[name] = known == empty_.end() ? Empty{now} : known->second;
    if (entry.is_told || seconds_of(now) - seconds_of(entry.since) < options_.rules.after_s) {
      continue;
    }
    entry.is_told = true;
    options_.log(Severity::kInfo, "box_may_stop",
                 "box " + name + " is a standby without parts; it may be switched off");
    call_hook("scale_in", name, "it is a standby without parts");
  }
  empty_ = std::move(empty);
}

void Scaler::call_hook(const char* event, const std::string& box, const std::string& reason) {
  if (!options_.hook) return;
  Json boxes = Json::array();
  for (const BoxRecord& record : box_directory_.boxes()) boxes.push_back(record.name);
  Json line = {{"event", event},
               {"cluster", options_.cluster},
               {"reason", reason},
               {"boxes", std::move(boxes)},
               {"switched_off", part_maps_.standbys_switched_off()},
               {"unix_seconds", environment_.unix_seconds()}};
  if (!box.empty()) line["box"] = box;
  options_.hook(line.dump(), [this, alive = alive_, event = std::string(event)](const Status& ran) {
    if (!*alive || ran) return;
    ++view_.hook_failures;
    options_.log(Severity::kWarning, "scale_hook",
                 "cluster.scale_hook failed on " + event + ": " + ran.error().message);
  });
}

}  // namespace pbox::cluster
