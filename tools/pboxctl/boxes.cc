#include <cstdio>
#include <ctime>

#include "tools/pboxctl/admin_client.h"

namespace pboxctl {
namespace {

using Json = nlohmann::json;

void print_boxes(const Json& page) {
  std::printf("%-24s %-7s %-24s %9s %14s %14s %9s  %s\n", "BOX", "LEADER", "CONTROL", "PIPELINES",
              "CAPACITY", "JOB MEMORY", "PARTS", "VERSION");
  for (const Json& box : list_of(page, "boxes")) {
    const std::string parts = std::to_string(static_cast<unsigned long>(number_of(box, "parts")));
    const std::string duty = box.value("standby", false)    ? "standby "
                             : box.value("draining", false) ? "drain "
                                                            : "";
    std::printf("%-24s %-7s %-24s %9lu %14s %14s %9s  %s\n", text_of(box, "name").c_str(),
                box.value("leads", false) ? "yes" : "", text_of(box, "control").c_str(),
                static_cast<unsigned long>(number_of(box, "pipelines")),
                in_units(number_of(box, "capacity_bytes_per_second"), 1e9, "GB/s").c_str(),
                in_units(number_of(box, "job_memory_bytes"), 1u << 30, "GiB").c_str(),
                (duty + parts).c_str(), text_of(box, "version").c_str());
    const std::string obstacle = text_of(box, "drain_obstacle", "");
    if (!obstacle.empty()) std::printf("  %s\n", obstacle.c_str());
  }
  const auto since = static_cast<std::time_t>(number_of(page, "leader_since_unix_seconds"));
  char when[32] = "";
  if (since != 0) std::strftime(when, sizeof(when), ", since %F %T", std::localtime(&since));
  std::printf("cluster %s, leader %s%s\n", text_of(page, "cluster").c_str(),
              text_of(page, "leader").c_str(), when);
  if (!page.value("store_up", false)) {
    std::printf("the cluster store is down; the list above is the last known: %s\n",
                text_of(page, "store_error").c_str());
  }
}

std::string percent(const Json& job, const char* key) {
  char text[32] = "-";
  if (job.contains(key) && job[key].is_number()) {
    std::snprintf(text, sizeof(text), "%.1f %%", 100 * number_of(job, key));
  }
  return text;
}

void print_decision(const Json& decision, const std::string& text) {
  const auto at = static_cast<std::time_t>(number_of(decision, "unix_seconds"));
  char when[32] = "";
  std::strftime(when, sizeof(when), "%T", std::localtime(&at));
  std::printf("  %s %-12s %s\n", when, text_of(decision, "kind").c_str(), text.c_str());
}

// `what`: what moves, "parts" or "groups".
void print_job(const Json& job, const char* what) {
  std::printf("job %s: %s, an iteration takes %s, %lu %s moved, the last move saved %s\n",
              text_of(job, "name").c_str(), text_of(job, "state").c_str(),
              in_time(number_of(job, "iteration_seconds")).c_str(),
              static_cast<unsigned long>(number_of(job, "parts_moved")), what,
              percent(job, "last_gain").c_str());
  const std::string waits_for = text_of(job, "waits_for", "");
  if (!waits_for.empty()) std::printf("  waits for %s\n", waits_for.c_str());
  for (const Json& box : list_of(job, "boxes")) {
    std::printf("  %-24s %-8s %4lu %s  busy %8s of an iteration  %s\n",
                text_of(box, "name").c_str(), text_of(box, "state").c_str(),
                static_cast<unsigned long>(number_of(box, "parts")), what,
                in_time(number_of(box, "busy_seconds")).c_str(),
                in_units(number_of(box, "bytes_per_second"), 1e6, "MB/s").c_str());
  }
  const Json decisions = list_of(job, "decisions");
  if (decisions.empty()) std::printf("  no decision yet\n");
  for (const Json& decision : decisions) {
    print_decision(decision, text_of(decision, "reason"));
  }
}

// Prints nothing unless the page is the leader's, because only that one has the member "pressure".
void print_scaling(const Json& scaling) {
  if (!scaling.is_object() || !scaling.contains("pressure")) return;
  if (!scaling["pressure"].is_number()) return;
  std::printf("the boxes that take parts use %s of their memory or links\n",
              percent(scaling, "pressure").c_str());
  for (const Json& decision : list_of(scaling, "decisions")) {
    const std::string box = text_of(decision, "box");
    print_decision(decision,
                   (box.empty() ? "" : "box " + box + ": ") + text_of(decision, "reason"));
  }
}

// Prints the decisions about the box's own pipelines. Boxes of older releases have none.
void print_inside(const Json& inside) {
  if (!inside.is_object()) return;
  const Json jobs = list_of(inside, "jobs");
  if (!inside.value("enabled", false)) {
    std::printf(
        "chunks stay on their pipelines: pipeline.rebalance is off, or there is only one\n");
  } else if (jobs.empty()) {
    std::printf("this box has no jobs whose chunks could move between its pipelines\n");
  } else {
    std::printf("groups of chunks between the pipelines of this box:\n");
  }
  for (const Json& job : jobs) print_job(job, "groups");
}

void print_why(const Json& page) {
  if (page.contains("inside")) print_inside(page["inside"]);
  if (page.contains("scaling")) print_scaling(page["scaling"]);
  if (!page.value("enabled", false)) {
    std::printf(
        "this box does not rebalance: cluster.rebalance is off, or the box is in no cluster\n");
    return;
  }
  if (!page.value("leads", false)) {
    std::printf("only the leader has decisions: name box %s with --admin\n",
                text_of(page, "leader").c_str());
    return;
  }
  const Json jobs = list_of(page, "jobs");
  if (jobs.empty()) std::printf("the cluster has no jobs\n");
  for (const Json& job : jobs) print_job(job, "parts");
}

boost::program_options::options_description boxes_options() {
  auto description = admin_options();
  description.add_options()("why",
                            "show why parts of jobs moved or stayed; needs --admin of the leader");
  return description;
}

int boxes(const boost::program_options::variables_map& given, const Words& /*more*/) {
  if (given.count("why") > 0) return show_page(given, "/api/v1/rebalancing", print_why);
  return show_page(given, "/api/v1/boxes", print_boxes);
}

}  // namespace

const Command kBoxes = {"boxes",
                        "[options]",
                        "list the boxes of a cluster, and which one leads",
                        "Lists the boxes of a cluster, as one of them knows it, and which one "
                        "leads. With --why, shows\n"
                        "the leader's decisions about the parts of jobs, and their reasons.",
                        boxes_options,
                        boxes};

}  // namespace pboxctl
