#include "appliance/control/relay_connector.h"

#include "appliance/control/job_relay.h"

namespace pbox::control {

using Severity = RegistryEvent::Severity;

bool RelayConnector::connect(Job& job) {
  if (!job.spec().relayed) return true;
  PBOX_CHECK(upstream_ != nullptr);  // a part is relayed only where there is an upstream box
  if (job.relay() == nullptr) {
    const JobKey part = key_of(job.spec());
    const uint64_t number = questions_[part] = context_.next_question();
    job.attach_relay(upstream_->join(
        relay_spec(job.spec(), job.members().workers(), job.timeouts()),
        [this, alive = std::weak_ptr(context_.alive), part, number](const Status& status) {
          if (!alive.expired()) on_answer(part, number, status);
        }));
    const RelayView relay = job.relay()->view();
    context_.note(Severity::kInfo, "upstream_joining",
                  job.spec().title() + ": all ranks are here; it joins box " + relay.box +
                      " as rank " + std::to_string(relay.rank) + " of " +
                      std::to_string(relay.racks) + " racks",
                  job.spec().name);
  }
  return job.relay()->view().is_joined;
}

void RelayConnector::on_answer(const JobKey& part, uint64_t number, const Status& status) {
  Job* job = context_.jobs.find(part);
  const auto question = questions_.find(part);
  if (job == nullptr || question == questions_.end() || question->second != number) return;
  if (job->relay() == nullptr) return;
  const RelayView relay = job->relay()->view();
  if (!status) {
    owner_.fail(*job, {status.error().code,
                       job->spec().title() + ": upper box " + relay.box +
                           ", to which this box forwards its sums: " + status.error().message});
    return;
  }
  context_.note(Severity::kInfo, "upstream_joined",
                job->spec().title() + ": box " + relay.box + " sums " +
                    std::to_string(relay.racks) + " racks with " + std::to_string(relay.workers) +
                    " ranks in all",
                job->spec().name);
  owner_.advance(part);
}

}  // namespace pbox::control
