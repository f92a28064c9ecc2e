#include "weft/comm/tcp/control.h"

namespace weft {

TcpControl::TcpControl(int rank, int size, std::vector<Socket> peers, Sigterm sigterm)
    : Control(rank, size),
      engine_(std::move(peers), sigterm,
              {
                  [this](int peer, std::uint32_t kind, const std::string& text) {
                    handle(peer, static_cast<Message>(kind), text);
                  },
                  [this](int peer, const std::string& why) { handle_loss(peer, why); },
                  [this] { note_sigterm(); },
                  [this](const std::string& why) { fail(why); },
              }) {
  static_assert(longest_text <= largest_control);
  engine_.start();
}

}  // namespace weft
