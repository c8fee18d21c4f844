#include "appliance/cluster/etcd_space.h"

#include <algorithm>

#include "base/check.h"

namespace pbox::cluster {
namespace {

using etcdserverpb::StatusResponse;

// etcd reports the alarms of all members, for example "memberID:1 alarm:NOSPACE ".
bool has_space_alarm(const StatusResponse& response) {
  return std::any_of(response.errors().begin(), response.errors().end(),
                     [](const auto& error) { return error.find("NOSPACE") != std::string::npos; });
}

grpc::Status no_space(const std::string& why) {
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, why};
}

}  // namespace

EtcdSpace::EtcdSpace(EtcdClient& client, std::chrono::milliseconds interval)
    : client_(client), interval_(interval), timer_(client.context()) {
  PBOX_CHECK(interval.count() > 0);
  ask();
}

void EtcdSpace::ask() {
  client_.call<StatusResponse>(
      Operation::kStatus,
      [this](const EtcdClient::Member& member, grpc::ClientContext& context) {
        return member.maintenance->AsyncStatus(&context, {}, client_.loop().queue());
      },
      [this, asked = client_.current()](const grpc::Status& status,
                                        const StatusResponse& response) {
        if (status.ok()) {
          client_.set_full(has_space_alarm(response), asked,
                           no_space("the alarm NOSPACE is raised, all changes are refused"));
        }
        ask_later();
      });
}

void EtcdSpace::ask_later() {
  timer_.expires_after(interval_);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) ask();
  });
}

void EtcdSpace::on_change(const grpc::Status& status) {
  if (status.ok()) return client_.set_full(false, client_.current(), status);
  const bool is_full = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
                       status.error_message().find("space exceeded") != std::string::npos;
  if (is_full) client_.set_full(true, client_.current(), status);
}

}  // namespace pbox::cluster
