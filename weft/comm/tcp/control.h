// The control channel of a rank under TCP: control messages use the same connections as other messages, ahead of them.
#pragma once

#include "weft/comm/control.h"
#include "weft/comm/tcp/engine.h"

namespace weft {

class TcpControl : public Control {
 public:
  TcpControl(int rank, int size, std::vector<Socket> peers, Sigterm sigterm);
  ~TcpControl() override { engine_.stop(); }

  TcpEngine& engine() { return engine_; }

 private:
  void send(int peer, Message message, std::shared_ptr<const std::string> text) override {
    engine_.send_control(peer, static_cast<std::uint32_t>(message), std::move(text));
  }
  void wake_waits() override { engine_.wake_waits(); }

  TcpEngine engine_;
};

}  // namespace weft
