#include "appliance/control/control_connections.h"

namespace pbox::control {
namespace {

proto::BoxMessage failure(const Error& error) {
  proto::BoxMessage message;
  message.mutable_failure()->set_code(static_cast<uint32_t>(error.code));
  message.mutable_failure()->set_message(error.message);
  return message;
}

}  // namespace

void ControlConnections::open(ConnectionId id, const nic::Endpoint& peer, uint64_t now_ns,
                              std::optional<tls::Identity> identity) {
  PBOX_CHECK(id != 0);  // 0 means that a member has no connection
  connections_[id] = {to_string(peer), peer, now_ns, now_ns, nullptr, 0, std::move(identity)};
}

Connection* ControlConnections::find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second;
}

Connection ControlConnections::erase(ConnectionId id) {
  auto node = connections_.extract(id);
  PBOX_CHECK(!node.empty());
  return std::move(node.mapped());
}

void ControlConnections::send(ConnectionId id, proto::BoxMessage message) {
  actions_.push_back({Action::Kind::kSend, id, std::move(message)});
}

void ControlConnections::send_all(const Job& job, const proto::BoxMessage& message) {
  for (const Member& member : job.members()) {
    if (member.state == Member::State::kJoined) send(member.connection, message);
  }
}

void ControlConnections::close(ConnectionId id) {
  actions_.push_back({Action::Kind::kClose, id, {}});
}

void ControlConnections::refuse(ConnectionId id, const Error& error) {
  send(id, failure(error));
  close(id);
}

void ControlConnections::redirect(ConnectionId id, const proto::PartPlace& place) {
  proto::BoxMessage message;
  *message.mutable_moved() = place;
  send(id, std::move(message));
  close(id);
}

void ControlConnections::detach(ConnectionId id) {
  if (Connection* connection = find(id)) connection->job = nullptr;
}

void ControlConnections::drop(ConnectionId id) {
  detach(id);
  close(id);
}

void ControlConnections::dismiss(ConnectionId id, const Error& error) {
  detach(id);
  refuse(id, error);
}

}  // namespace pbox::control
