// Makes the seals of a part's sessions. Used on the control thread.
#pragma once

#include <cstdint>
#include <string>

#include "appliance/control/connection_keys.h"
#include "appliance/control/job_spec.h"
#include "appliance/control/roster.h"

namespace pbox::control {

class SessionMaker {
 public:
  // `keys`: null if sessions have none. `box`: this box's name.
  SessionMaker(ConnectionKeys* keys, std::string box) : keys_(keys), box_(std::move(box)) {}

  // `pipeline`: index among the part's pipelines. A rank whose connection has ended gets a seal
  // that opens no packet.
  Result<seal::SessionSeal> make(const JobSpec& job, uint32_t epoch, uint32_t rank,
                                 const Member& member, uint32_t pipeline, uint32_t spi) const;

 private:
  ConnectionKeys* keys_;
  std::string box_;
};

}  // namespace pbox::control
