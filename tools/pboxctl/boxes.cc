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
    std::printf("%-24s %-7s %-24s %9lu %14s %14s %9s  %s\n", text_of(box, "name").c_str(),
                box.value("leads", false) ? "yes" : "", text_of(box, "control").c_str(),
                static_cast<unsigned long>(number_of(box, "pipelines")),
                in_units(number_of(box, "capacity_bytes_per_second"), 1e9, "GB/s").c_str(),
                in_units(number_of(box, "job_memory_bytes"), 1u << 30, "GiB").c_str(),
                (box.value("draining", false) ? "drain " + parts : parts).c_str(),
                text_of(box, "version").c_str());
  }
  const auto since = static_cast<std::time_t>(number_of(page, "leader_since_unix_seconds"));
  char when[32] = "";
  if (since != 0) std::strftime(when, sizeof(when), ", since %F %T", std::localtime(&since));
  std::printf("cluster %s, leader %s%s\n", text_of(page, "cluster").c_str(),
              text_of(page, "leader").c_str(), when);
  if (!page.value("store_up", false)) {
    std::printf("the cluster store is down, this is what was last heard: %s\n",
                text_of(page, "store_error").c_str());
  }
}

int boxes(const boost::program_options::variables_map& given, const Words& /*more*/) {
  return show_page(given, "/api/v1/boxes", print_boxes);
}

}  // namespace

const Command kBoxes = {
    "boxes",
    "[options]",
    "list the boxes of a cluster, and which one leads",
    "Lists the boxes of a cluster as one of them knows it, and which one leads.",
    admin_options,
    boxes};

}  // namespace pboxctl
