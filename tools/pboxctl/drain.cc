#include <boost/program_options.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <thread>

#include "tools/pboxctl/admin_client.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
using Json = nlohmann::json;

constexpr std::chrono::milliseconds kDrainTick{200};

options::options_description drain_options() {
  auto description = admin_options();
  description.add_options()("undo", "let the box take parts of jobs again");
  description.add_options()("standby",
                            "drain the box, but let the cluster use it again when it needs a box");
  description.add_options()("wait", "return only when the box has no parts left");
  description.add_options()("timeout",
                            options::value<unsigned>()->default_value(600)->value_name("SECONDS"),
                            "time limit of --wait");
  return description;
}

// Returns the box of that name; null if there is none.
const Json* find_box(const Json& boxes, const std::string& name) {
  for (const Json& box : boxes) {
    if (text_of(box, "name") == name) return &box;
  }
  return nullptr;
}

int await_empty(const options::variables_map& given, const std::string& name) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(given["timeout"].as<unsigned>());
  unsigned long shown = 0;
  for (;;) {
    const auto page = fetch(given, "/api/v1/boxes");
    if (!page) return kFailed;
    const Json boxes = list_of(*page, "boxes");
    const Json* box = find_box(boxes, name);
    const auto parts = box == nullptr ? 0ul : static_cast<unsigned long>(number_of(*box, "parts"));
    const bool drains = box != nullptr && box->value("draining", false);
    if (box == nullptr || (drains && parts == 0)) {
      std::cerr << "box " << name << " has no parts left; you may stop it\n";
      return kDone;
    }
    if (parts != shown) std::cerr << "box " << name << " still has " << parts << " parts\n";
    shown = parts;
    if (std::chrono::steady_clock::now() > end) {
      std::cerr
          << "pboxctl: box " << name << " still has " << parts
          << " parts. Jobs of model bsp with recovery none cannot move: wait for their end, or "
             "stop them (`pboxctl jobs` lists them). `pboxctl boxes` says what other parts "
             "wait for\n";
      return kFailed;
    }
    std::this_thread::sleep_for(kDrainTick);
  }
}

int drain(const options::variables_map& given, const Words& more) {
  const bool as_json = wants_json(given);
  if (more.empty()) return complain("drain", "name the box, as `pboxctl boxes` lists it");
  const bool undo = given.contains("undo");
  const bool standby = given.contains("standby");
  if (undo && given.contains("wait")) return complain("drain", "give --wait or --undo, not both");
  if (undo && standby) return complain("drain", "give --standby or --undo, not both");
  Json wanted{{"draining", !undo}};
  if (standby) wanted["standby"] = true;
  const auto body = post(given, "/api/v1/boxes/" + in_path(more[0]) + "/drain", wanted.dump());
  if (!body) {
    std::cerr << "pboxctl: " << body.error().message << '\n';
    return kFailed;
  }
  if (as_json) std::cout << *body;
  return given.contains("wait") ? await_empty(given, more[0]) : kDone;
}

}  // namespace

const Command kDrain = {
    "drain",
    "BOX [options]",
    "move all parts of jobs from a box to other boxes, or undo that",
    "Empties a box of a cluster, so that you can stop it without harm to any job. Its parts move "
    "to\nother boxes, and it gets no new ones until `pboxctl drain BOX --undo`; with --standby, "
    "until the\nleader finds that the cluster needs it (cluster.scale). --admin may name any box "
    "of the cluster.\nParts of jobs that "
    "cannot move stay until their jobs end.",
    drain_options,
    drain,
    Command::More::kBox};

}  // namespace pboxctl
