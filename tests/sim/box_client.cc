// A box's client side: its questions to other boxes, and its connections to backup boxes and to the
// upper box.
#include <algorithm>

#include "nic/wire/control_frame.h"
#include "tests/sim/box.h"
#include "tests/sim/violation.h"

namespace pbox::sim {

Member* Box::Client::relay(ConnectionId id) const {
  if (box_.uplinks_) return box_.uplinks_->member(id);
  const auto found = std::find_if(box_.relays_.begin(), box_.relays_.end(),
                                  [id](const auto& relay) { return relay->has(id); });
  return found == box_.relays_.end() ? nullptr : found->get();
}

void Box::Client::on_connected(ConnectionId id) {
  if (Member* member = relay(id)) return member->on_connected(id);
  const auto found = box_.questions_.find(id);
  if (found == box_.questions_.end()) return;
  const auto framed = wire::frame(found->second.message);
  box_.rack_.control.send(id, box_.client_host_, framed->substr(wire::kControlLengthBytes));
}

void Box::Client::on_control_message(ConnectionId id, const std::string& body) {
  if (Member* member = relay(id)) return member->on_control_message(id, body);
  if (!box_.questions_.contains(id)) return;
  proto::BoxMessage message;
  require(message.ParseFromString(body), "a box sent an invalid control message");
  if (!message.has_failure()) return box_.end_question(id, std::move(message));
  box_.end_question(
      id, Error{static_cast<ErrorCode>(message.failure().code()), message.failure().message()});
}

void Box::Client::on_closed(ConnectionId id, const std::string& reason) {
  if (Member* member = relay(id)) return member->on_closed(id, reason);
  if (box_.questions_.contains(id)) {
    box_.end_question(id, Error{ErrorCode::kUnavailable, reason});
  }
}

std::unique_ptr<control::Relay> Box::join(const std::string& address, control::RelaySpec spec,
                                          std::function<void(Status)> on_change) {
  const auto tell = [this, on_change = std::move(on_change)](const Status& status) {
    on_change(status);
    if (up()) flush();
  };
  relays_.push_back(std::make_unique<BackupMember>(
      rack_, host_, static_cast<uint32_t>(relays_.size()), address, std::move(spec), tell));
  return std::make_unique<BackupRelay>(*relays_.back());
}

void Box::ask_box(const std::string& address, const proto::WorkerMessage& question,
                  uint64_t timeout_ns, cluster::Environment::Answer done) {
  const HostId other = box_at(address);
  const ConnectionId id = rack_.control.connect(client_host_, other);
  Question& asked = questions_[id];
  asked.message = question;
  asked.done = std::move(done);
  rack_.say("box " + std::to_string(host_), [&] {
    const std::string text = "asks box " + std::to_string(other);
    if (!question.has_ask_state()) return text;
    const proto::AskState& state = question.ask_state();
    return text + " for the state of job " + state.job() + " of epoch " +
           std::to_string(state.epoch()) + (state.taken() ? " (it has arrived)" : "");
  });
  rack_.queue.after(timeout_ns, [this, id] {
    if (questions_.contains(id)) end_question(id, Error{ErrorCode::kUnavailable, "no answer"});
  });
}

void Box::end_question(ConnectionId id, Result<proto::BoxMessage> answer) {
  const proto::AskState& question = questions_.at(id).message.ask_state();
  if (question.is_backup() && !question.taken() && answer) rack_.counts.add(Fault::kCopyUsed);
  const cluster::Environment::Answer done = std::move(questions_.extract(id).mapped().done);
  rack_.control.close(id, client_host_);
  done(std::move(answer));
  flush();
}

}  // namespace pbox::sim
