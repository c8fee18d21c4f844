#include "tests/sim/control_link.h"

#include <utility>

#include "base/clock.h"

namespace pbox::sim {
namespace {

// Interval at which TCP retries a blocked path.
constexpr uint64_t kRetryNs = 20 * kNanosPerMilli;

}  // namespace

ConnectionId ControlNetwork::connect(HostId worker, HostId box) {
  const ConnectionId id = next_id_++;
  connections_[id] = {.worker = worker, .box = box};
  queue_.after(2 * latency_ns_, [this, id] { accept(id); });
  return id;
}

bool ControlNetwork::passes(const Connection& connection) {
  return !network_.blocked(connection.worker, connection.box) &&
         !network_.blocked(connection.box, connection.worker) &&
         stalled_until_ns_[connection.worker] <= queue_.now_ns() &&
         stalled_until_ns_[connection.box] <= queue_.now_ns();
}

void ControlNetwork::accept(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  if (!connection.worker_open) {
    connections_.erase(found);
    return;
  }
  if (!passes(connection)) {
    queue_.after(kRetryNs, [this, id] { accept(id); });
    return;
  }
  connection.box_open = ends_[connection.box]->on_accept(id, connection.worker);
  if (connection.box_open) {
    ends_[connection.worker]->on_connected(id);
  } else {
    finish(id, connection.worker, "connection refused");
  }
}

void ControlNetwork::send(ConnectionId id, HostId from, std::string body) {
  enqueue(id, from, {.body = std::move(body)});
}

void ControlNetwork::close(ConnectionId id, HostId from) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  enqueue(id, from, {.is_close = true});
  (found->second.box == from ? found->second.box_open : found->second.worker_open) = false;
  drop_if_over(id);
}

size_t ControlNetwork::open_count(HostId box) const {
  return static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [box](const auto& entry) { return entry.second.box == box; }));
}

void ControlNetwork::enqueue(ConnectionId id, HostId from, Item item) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  const bool to_box = connection.worker == from;
  auto& items = to_box ? connection.to_box : connection.to_worker;
  message_count_ += item.is_close ? 0 : 1;
  item.due_ns = queue_.now_ns() + latency_ns_;
  items.push_back(std::move(item));
  queue_.after(latency_ns_, [this, id, to_box] { deliver(id, to_box); });
}

void ControlNetwork::deliver(ConnectionId id, bool to_box) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  auto& items = to_box ? connection.to_box : connection.to_worker;
  if (items.empty() || items.front().due_ns > queue_.now_ns()) return;
  if (!passes(connection)) {
    queue_.after(kRetryNs, [this, id, to_box] { deliver(id, to_box); });
    return;
  }
  const Item item = std::move(items.front());
  items.pop_front();
  const HostId at = to_box ? connection.box : connection.worker;
  const HostId other = to_box ? connection.worker : connection.box;
  const bool open = to_box ? connection.box_open : connection.worker_open;
  if (item.is_close) {
    finish(id, at, "connection closed");
  } else if (open) {
    ends_[at]->on_control_message(id, item.body);
  } else if (connection.halves_lost) {
    finish(id, other, "connection reset by peer");
  }
  drop_if_over(id);
}

// Reports the connection's end to the host `at`, if it still considers the connection open.
void ControlNetwork::finish(ConnectionId id, HostId at, const std::string& reason) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  bool& open = found->second.box == at ? found->second.box_open : found->second.worker_open;
  if (!std::exchange(open, false)) return;
  const bool other_open = found->second.box_open || found->second.worker_open;
  ends_[at]->on_closed(id, reason);
  if (!other_open) connections_.erase(id);
}

void ControlNetwork::drop_if_over(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  if (!connection.box_open && !connection.worker_open) connections_.erase(found);
}

void ControlNetwork::abort_all(HostId host, bool silently) {
  std::vector<ConnectionId> ids;
  for (auto& [id, connection] : connections_) {
    if (connection.box == host || connection.worker == host) ids.push_back(id);
  }
  for (const ConnectionId id : ids) {
    Connection& connection = connections_[id];
    const bool is_box = connection.box == host;
    (is_box ? connection.box_open : connection.worker_open) = false;
    (is_box ? connection.to_worker : connection.to_box).clear();
    connection.halves_lost = true;
    if (!silently) {
      const HostId other = is_box ? connection.worker : connection.box;
      queue_.after(latency_ns_,
                   [this, id, other] { finish(id, other, "connection reset by peer"); });
    }
    drop_if_over(id);
  }
}

void ControlNetwork::break_all(HostId host) {
  std::vector<ConnectionId> ids;
  for (auto& [id, connection] : connections_) {
    if (connection.box == host || connection.worker == host) ids.push_back(id);
  }
  for (const ConnectionId id : ids) {
    const Connection& connection = connections_[id];
    if (!connection.box_open) continue;  // not accepted yet
    const HostId ends[] = {connection.worker, connection.box};
    for (const HostId end : ends) {
      queue_.after(latency_ns_, [this, id, end] { finish(id, end, "connection reset by peer"); });
    }
  }
}

}  // namespace pbox::sim
