#include "appliance/topology/print.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "config/cpu_list.h"

namespace pbox::topology {
namespace {

using Row = std::vector<std::string>;

std::string gibibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1u << 30));
  return text;
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string node_name(int node) {
  return node < 0 ? "any" : std::to_string(node);
}

// Formats rows as columns of the width of their widest cell, two blanks apart, without trailing
// blanks.
std::string table(const std::vector<Row>& rows) {
  PBOX_CHECK(!rows.empty());
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace

std::string to_text(const Topology& topology) {
  std::vector<Row> nodes = {{"NODE", "PIPELINES", "CONTROL CPUS", "JOB MEMORY"}};
  for (const auto& node : topology.nodes) {
    nodes.push_back({std::to_string(node.node), std::to_string(node.pipelines.size()),
                     or_dash(config::print_cpu_list(node.control_cpus)),
                     gibibytes(node.job_memory_bytes)});
  }
  std::vector<Row> pipelines = {{"PIPELINE", "CPU", "PINNED", "NODE", "NIC", "QUEUE", "ADDRESS",
                                 "UDP PORT", "ARENA", "PAGES"}};
  for (const auto& pipeline : topology.pipelines) {
    pipelines.push_back(
        {std::to_string(pipeline.index), std::to_string(pipeline.cpu),
         pipeline.pinned ? "yes" : "no", node_name(pipeline.node), or_dash(pipeline.nic),
         pipeline.nic.empty() ? "-" : std::to_string(pipeline.queue), pipeline.address,
         pipeline.udp_port == 0 ? "any" : std::to_string(pipeline.udp_port),
         gibibytes(pipeline.arena_bytes), pipeline.hugepages ? "2 MiB" : "transparent"});
  }
  std::string text = "Plan for " + topology.source + "\n\n" + table(nodes) + '\n' +
                     table(pipelines) + "\nReasons\n";
  for (const auto& reason : topology.reasons) text += "  " + reason + '\n';
  return text;
}

std::string to_json(const Topology& topology) {
  nlohmann::ordered_json object;
  object["source"] = topology.source;
  object["nodes"] = nlohmann::ordered_json::array();
  for (const auto& node : topology.nodes) {
    object["nodes"].push_back({{"node", node.node},
                               {"pipelines", node.pipelines},
                               {"control_cpus", node.control_cpus},
                               {"job_memory_bytes", node.job_memory_bytes},
                               {"packet_memory_bytes", node.packet_memory_bytes}});
  }
  object["pipelines"] = nlohmann::ordered_json::array();
  for (const auto& pipeline : topology.pipelines) {
    object["pipelines"].push_back({{"index", pipeline.index},
                                   {"cpu", pipeline.cpu},
                                   {"pinned", pipeline.pinned},
                                   {"node", pipeline.node},
                                   {"nic", pipeline.nic},
                                   {"queue", pipeline.queue},
                                   {"devices", pipeline.devices},
                                   {"rdma_device", pipeline.rdma_device},
                                   {"address", pipeline.address},
                                   {"udp_port", pipeline.udp_port},
                                   {"arena_bytes", pipeline.arena_bytes},
                                   {"hugepages", pipeline.hugepages}});
  }
  object["control_cpus"] = topology.control_cpus;
  object["job_memory_bytes"] = topology.job_memory_bytes;
  object["reasons"] = topology.reasons;
  return object.dump(2) + '\n';
}

}  // namespace pbox::topology
