// pboxctl sync: shows the consistency models of a job, and changes them while it runs.
#include "nic/wire/sync.h"

#include <boost/program_options.hpp>
#include <cstdio>
#include <iostream>

#include "tools/pboxctl/admin_client.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
using Json = nlohmann::json;

options::options_description sync_options() {
  auto description = admin_options();
  description.add_options()(
      "tensors", options::value<std::string>()->value_name("GLOB"),
      "only tensors whose names match; * stands for any text, ? for one byte");
  return description;
}

void print_models(const Json& job) {
  const Json sync = job.value("sync", Json::object());
  std::printf("%-24s %s\n", text_of(job, "name").c_str(), text_of(sync, "text").c_str());
  const Json by_tensor = sync.value("by_tensor", Json::object());
  for (const auto& [tensor, model] : by_tensor.items()) {
    if (model.is_string()) {
      std::printf("  %-22s %s\n", printable(tensor).c_str(), model.get<std::string>().c_str());
    }
  }
}

int change(const options::variables_map& given, const std::string& path, const std::string& model) {
  const auto sync = pbox::wire::parse_sync_text(model);
  if (!sync) return complain("sync", sync.error().message);
  Json body{{"sync", pbox::wire::sync_text(*sync)}};
  if (given.contains("tensors")) body["tensors"] = given["tensors"].as<std::string>();
  const bool as_json = wants_json(given);
  std::string text;
  try {
    text = body.dump();
  } catch (const Json::type_error&) {
    return complain("sync", "--tensors is not valid UTF-8");
  }
  const auto answer = post(given, path + "/sync", text);
  if (!answer) {
    std::cerr << "pboxctl: " << answer.error().message << '\n';
    return kFailed;
  }
  if (as_json) {
    std::cout << *answer;
    return kDone;
  }
  constexpr bool kThrows = false;
  const Json models = Json::parse(*answer, nullptr, kThrows);
  if (!models.is_object()) {
    std::cerr << "pboxctl: the box's answer is no JSON object: " << *answer << '\n';
    return kFailed;
  }
  print_models(models);
  return kDone;
}

int sync(const options::variables_map& given, const Words& more) {
  if (more.empty()) return complain("sync", "name the job, as `pboxctl jobs` lists it");
  const std::string path = "/api/v1/jobs/" + in_path(more[0]);
  if (more.size() == 2) return change(given, path, more[1]);
  if (given.contains("tensors")) {
    return complain("sync",
                    "--tensors changes the model of these tensors; give a MODEL, such as ssp:3");
  }
  return show_page(given, path, print_models);
}

}  // namespace

const Command kSync = {
    "sync",
    "JOB [MODEL] [options]",
    "show the consistency models of a job's tensors, or change them",
    "Without MODEL: lists the consistency models in force. With MODEL, all tensors of the job, or "
    "those\nthat --tensors names, have that model from their next reads on. The new model also "
    "decides about\nreads that wait.\n\n"
    "MODEL is asp, ssp:STALENESS, pssp:STALENESS:PROBABILITY, dpssp:STALENESS:PROBABILITY, "
    "drop:QUORUM or\nadaptive:LEAST-MOST:PROBABILITY, followed by :lazy for lazy release, or by "
    ":gradient for dpssp by\ngradient. drop:QUORUM may be followed by a grace, :500ms or :auto, "
    "and by :next, which counts late\npushes in the next round. asp, ssp, pssp, dpssp and "
    "adaptive with fresh reads may replace each other,\nand drop may change its quorum and "
    "grace. bsp and cached reads stay until the job ends.\n\n"
    "The change reaches the parts of the job on this box. For a job on several boxes name each of "
    "them\nwith --admin, or let a rank make the change (pbox_set_sync), which reaches all parts.",
    sync_options,
    sync,
    Command::More::kJobAndModel};

}  // namespace pboxctl
