#include "appliance/control/session_maker.h"

namespace pbox::control {

Result<seal::SessionSeal> SessionMaker::make(const JobSpec& job, uint32_t epoch, uint32_t rank,
                                             const Member& member, uint32_t pipeline,
                                             uint32_t spi) const {
  if (keys_ == nullptr) return seal::SessionSeal();
  seal::SessionKeys* connection = keys_->of(member.connection);
  if (connection == nullptr) return seal::SessionSeal::closed();
  const KeyPolicy policy = keys_->policy();
  const seal::SessionName name{.box = box_,
                               .job = job.name,
                               .part = job.part,
                               .rank = rank,
                               .epoch = epoch,
                               .incarnation = member.incarnation,
                               .suite = policy.suite};
  auto made = connection->make(name, {pipeline, spi, policy.updates});
  const bool has_ended = !made && made.error().code == ErrorCode::kUnavailable;
  return has_ended ? Result<seal::SessionSeal>(seal::SessionSeal::closed()) : std::move(made);
}

}  // namespace pbox::control
