// Asks another box one question on its control port. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::cluster {

// Connects to "HOST:PORT" (the host is a literal address), sends `question` and passes the first
// message that comes back to `done`. An answer of type FAILURE becomes the error that it carries.
// kUnavailable: no answer within `timeout`; the error says why. `done` is called exactly once, from
// `context`, after this call has returned.
void ask_box(boost::asio::io_context& context, const std::string& control,
             const proto::WorkerMessage& question, std::chrono::milliseconds timeout,
             std::function<void(Result<proto::BoxMessage>)> done);

// Asks a box for its data addresses, which every box can answer at once, to learn whether it is
// alive. `done` gets the answer (empty if that is a FAILURE), or the reason why there is none.
void probe(boost::asio::io_context& context, const std::string& control,
           const proto::AskDataAddresses& question, std::chrono::milliseconds timeout,
           std::function<void(const Result<proto::DataAddresses>&)> done);

}  // namespace pbox::cluster
