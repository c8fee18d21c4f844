#include <algorithm>
#include <map>

#include "appliance/topology/steps.h"
#include "base/check.h"

namespace pbox::topology::steps {
namespace {

std::string counted(size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// Returns the largest number of pipelines that every server can have on its own node; 0 if a node
// has more NICs than cores.
size_t equal_share(const std::vector<Server>& servers, const std::vector<Seat>& seats) {
  std::map<int, size_t> server_count;
  std::map<int, size_t> seat_count;
  for (const auto& server : servers) ++server_count[server.node];
  for (const auto& seat : seats) ++seat_count[seat.node];
  size_t share = seats.size();
  for (const auto& [node, count] : server_count) share = std::min(share, seat_count[node] / count);
  return share;
}

size_t small_count(const config::Config& config, size_t count, Reasons& reasons) {
  constexpr size_t kSmallCount = 2;
  if (config.pipeline.poll == config::PollMode::kBusy) {
    const size_t busy_count = std::max<size_t>(1, count - 1);
    reasons.push_back(
        "small machine, pipeline.poll = busy: " + counted(busy_count, "pipeline") +
        (count > 1 ? ", one core is left for everything else" : "; it spins on the only core"));
    return busy_count;
  }
  reasons.push_back("small machine: " + counted(std::min(count, kSmallCount), "pipeline") +
                    " for " + counted(count, "usable core"));
  return std::min(count, kSmallCount);
}

size_t automatic_count(const config::Config& config, const Budget& budget,
                       const std::vector<Server>& servers, const std::vector<Seat>& seats,
                       Reasons& reasons) {
  size_t count = std::min<size_t>(seats.size(), limits::kPipelinesMax);
  if (!config.pipeline.cores.empty()) return count;
  if (budget.quota_count != 0) count = std::min<size_t>(count, budget.quota_count);
  if (budget.is_small) return small_count(config, count, reasons);
  const bool has_nics = !servers[0].nic.empty();
  const size_t share = has_nics ? std::min(equal_share(servers, seats), count / servers.size()) : 0;
  if (share == 0) {
    reasons.push_back("pipeline.count = 0: " + counted(count, "pipeline") +
                      ", one per usable core");
    return count;
  }
  std::string reason = "pipeline.count = 0: " + counted(share, "pipeline") + " for each of " +
                       counted(servers.size(), "NIC");
  PBOX_CHECK(share * servers.size() <= seats.size());
  const size_t left = seats.size() - share * servers.size();
  if (left > 0) {
    reason += "; " + counted(left, "core") +
              " run no pipeline: more pipelines at some NICs than at others would not help, "
              "because the busiest NIC limits the box";
  }
  reasons.push_back(std::move(reason));
  return share * servers.size();
}

// Returns server indices in an order that changes node at each step, so that the first few
// pipelines use all nodes.
std::vector<size_t> interleaved(const std::vector<Server>& servers) {
  std::map<int, size_t> rank_on_node;
  std::vector<std::pair<size_t, size_t>> ranked;
  for (size_t i = 0; i < servers.size(); ++i) {
    ranked.emplace_back(rank_on_node[servers[i].node]++, i);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<size_t> order;
  for (const auto& [rank, index] : ranked) order.push_back(index);
  return order;
}

// Returns how many pipelines each server gets. Servers take one each in turn while their node has
// seats. `count` is at most seats.size(), and each seat is near a server.
std::vector<uint32_t> deal(size_t count, const std::vector<Server>& servers,
                           const std::vector<Seat>& seats) {
  std::map<int, size_t> free_seats;
  for (const auto& seat : seats) ++free_seats[seat.node];
  const auto order = interleaved(servers);
  std::vector<uint32_t> dealt(servers.size());
  for (size_t placed = 0; placed < count;) {
    const size_t placed_before = placed;
    for (const size_t server : order) {
      size_t& free_count = free_seats[servers[server].node];
      if (placed == count || free_count == 0) continue;
      --free_count;
      ++dealt[server];
      ++placed;
    }
    PBOX_CHECK(placed > placed_before);
  }
  return dealt;
}

void explain_shares(const std::vector<Server>& servers, const std::vector<uint32_t>& dealt,
                    Reasons& reasons) {
  PBOX_DCHECK(!servers.empty() && dealt.size() == servers.size());
  if (servers[0].nic.empty()) return;
  const auto [least, most] = std::minmax_element(dealt.begin(), dealt.end());
  std::string idle;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (dealt[i] == 0) idle += (idle.empty() ? "" : ", ") + servers[i].nic;
  }
  if (!idle.empty()) {
    reasons.push_back("there are fewer pipelines than NICs; NICs without a pipeline: " + idle);
  } else if (*least != *most) {
    reasons.push_back("NICs have from " + std::to_string(*least) + " to " + std::to_string(*most) +
                      " pipelines: the busiest limits the box");
  }
}

}  // namespace

Result<std::vector<Place>> places(const config::Config& config, const Budget& budget,
                                  const std::vector<Server>& servers,
                                  const std::vector<Seat>& seats, Reasons& reasons) {
  PBOX_CHECK(!servers.empty() && !seats.empty());
  size_t count = config.pipeline.count;
  if (count > seats.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "pipeline.count = " + std::to_string(count) + ": only " +
                     counted(seats.size(), "physical core") +
                     " may run a pipeline here, one each; give at most " +
                     std::to_string(seats.size()) +
                     ", or 0 for an automatic choice; with pipeline.poll = adaptive, pipeline.pin "
                     "= off lets pipelines share cores"};
  }
  if (count == 0) count = automatic_count(config, budget, servers, seats, reasons);
  const auto dealt = deal(count, servers, seats);
  explain_shares(servers, dealt, reasons);

  std::vector<size_t> by_node(servers.size());
  for (size_t i = 0; i < servers.size(); ++i) by_node[i] = i;
  std::stable_sort(by_node.begin(), by_node.end(),
                   [&](size_t a, size_t b) { return servers[a].node < servers[b].node; });
  std::vector<Place> placed;
  std::vector<bool> is_taken(seats.size());
  for (const size_t server : by_node) {
    for (uint32_t queue = 0; queue < dealt[server]; ++queue) {
      size_t seat = 0;
      while (seat < seats.size() && (is_taken[seat] || seats[seat].node != servers[server].node)) {
        ++seat;
      }
      PBOX_CHECK(seat < seats.size());
      is_taken[seat] = true;
      placed.push_back(Place{server, seat, servers[server].nic.empty() ? 0 : queue});
    }
  }
  return placed;
}

}  // namespace pbox::topology::steps
