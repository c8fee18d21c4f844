// Runs the operator's program that starts and stops machines ([cluster] scale_hook). Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace pbox::cluster {

class ScaleHook {
 public:
  // `program`: path of an executable file.
  ScaleHook(boost::asio::io_context& context, std::string program);
  ~ScaleHook();  // ends a program that still runs
  ScaleHook(const ScaleHook&) = delete;
  ScaleHook& operator=(const ScaleHook&) = delete;

  // Runs the program with the line as its only argument. It inherits the daemon's standard error,
  // which goes to the journal. Calls made while it runs wait until it ends. A program that runs
  // for longer than kTimeoutSeconds is killed. `done`: ok if the program's exit status was 0.
  void call(std::string line, std::function<void(Status)> done);

  static constexpr int kTimeoutSeconds = 60;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace pbox::cluster
