// One question to another box, on its control port, and the answer. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::cluster {

// Connects to "HOST:PORT" with a literal address, asks, and gives `done` the first message that
// comes back. kUnavailable: nothing came of it within `timeout`, and why; a FAILURE is its own
// error. `done` is called once and later, from the context.
void ask_box(boost::asio::io_context& context, const std::string& control,
             const proto::WorkerMessage& question, std::chrono::milliseconds timeout,
             std::function<void(Result<proto::BoxMessage>)> done);

// Is a box there, and does it answer? It is asked for data addresses, which any box knows at once.
// `done` gets for how many milliseconds it has been up, or why nothing came of it.
void probe(boost::asio::io_context& context, const std::string& control,
           std::chrono::milliseconds timeout, std::function<void(const Result<uint64_t>&)> done);

}  // namespace pbox::cluster
