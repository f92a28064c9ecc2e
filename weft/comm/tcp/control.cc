#include "weft/comm/tcp/control.h"

namespace weft {

TcpControl::TcpControl(int rank, int size, std::vector<Socket> peers, TcpEngine::Sigterm sigterm)
    : Control(rank, size),
      engine_(std::move(peers), sigterm,
              {
                  [this](int peer, std::uint32_t word, const std::string& text) {
                    hear(peer, static_cast<Word>(word), text);
                  },
                  [this](int peer, const std::string& why) { lose(peer, why); },
                  [this] { note_sigterm(); },
                  [this](const std::string& why) { fail(why); },
              }) {
  static_assert(longest_text <= largest_word);
  engine_.start();
}

}  // namespace weft
