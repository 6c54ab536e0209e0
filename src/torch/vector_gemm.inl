// The matrix product. Panels of kColumns columns of b are packed (k rows of them, dense), so that the inner loop streams one panel while a
// block of rows of a stays in the second-level cache; a tile of c is kept in registers.

constexpr int kMaxVectors = kLanes == 16 ? 4 : 2;  // of a tile's width
constexpr int kColumns = kMaxVectors * kLanes;
constexpr std::int64_t kDepth = 256;  // rows of a packed panel

// Rows of a tile of this many vectors: enough independent sums to hide the latency, few enough for the registers.
constexpr int tile_rows(int vectors) {
  if (kLanes == 16) return vectors == 4 ? 6 : vectors == 3 ? 8 : 12;
  return vectors == 2 ? 6 : 12;
}

enum class Start { zero, add, bias };

struct TileArguments {
  std::int64_t depth;
  StridedMatrix a;
  const float* panel;  // depth x kColumns
  float* c;
  std::int64_t ldc;
  const float* bias;
  Start start;
  std::int64_t last;  // elements of the last vector
};

template <int Rows, int Vectors>
void tile(const TileArguments& t) {
  Vec sum[Rows][Vectors];
  const auto column = [&](const float* p, int v) {
    return v + 1 < Vectors || t.last == kLanes ? load(p + v * kLanes) : load_part(p + v * kLanes, t.last);
  };
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v)
      sum[r][v] = t.start == Start::zero ? Vec{} : t.start == Start::add ? column(t.c + r * t.ldc, v) : column(t.bias, v);
  const float* a = t.a.data;
  const float* b = t.panel;
  for (std::int64_t p = 0; p < t.depth; ++p, a += t.a.column, b += kColumns) {
    Vec row[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) row[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec x = broadcast(a[r * t.a.row]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[r][v] += x * row[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      float* p = t.c + r * t.ldc + v * kLanes;
      if (v + 1 < Vectors || t.last == kLanes)
        store(p, sum[r][v]);
      else
        store_part(p, sum[r][v], t.last);
    }
}

// Tiles of `rows` <= Rows rows: for the last rows of a matrix.
template <int Rows, int Vectors>
void tile_of(int rows, const TileArguments& t) {
  if (rows == Rows) return tile<Rows, Vectors>(t);
  if constexpr (Rows > 1) tile_of<Rows - 1, Vectors>(rows, t);
}

template <int Vectors>
void rows_of_tiles(std::int64_t m, TileArguments t) {
  constexpr int kRows = tile_rows(Vectors);
  for (; m >= kRows; m -= kRows, t.a.data += kRows * t.a.row, t.c += kRows * t.ldc) tile<kRows, Vectors>(t);
  if (m > 0) tile_of<kRows, Vectors>(static_cast<int>(m), t);
}

// block[i][j] <-> block[j][i], doubling the size of the swapped parts.
inline void transpose_block(Vec (&block)[kLanes]) {
  Mask lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
#pragma GCC unroll 4
  for (int half = 1; half < kLanes; half *= 2) {
    const Mask upper = (lane & half) != 0;
    const Mask low = upper ? lane - half + kLanes : lane;   // even row: its own low parts, then the odd row's
    const Mask high = upper ? lane + kLanes : lane + half;  // odd row: the even row's high parts, then its own
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & half) continue;
      const Vec even = block[i], odd = block[i + half];
      block[i] = __builtin_shuffle(even, odd, low);
      block[i + half] = __builtin_shuffle(even, odd, high);
    }
  }
}

// Packs b's rows [0, depth) and `columns` <= kColumns columns; columns past them are zero.
void pack_panel(StridedMatrix b, std::int64_t depth, std::int64_t columns, float* panel) {
  if (b.column == 1) {
    const std::int64_t whole = columns / kLanes * kLanes, rest = columns - whole;
    for (std::int64_t p = 0; p < depth; ++p, b.data += b.row, panel += kColumns) {
      for (std::int64_t j = 0; j < whole; j += kLanes) store(panel + j, load(b.data + j));
      if (rest) store(panel + whole, load_part(b.data + whole, rest));
    }
    return;
  }
  for (std::int64_t j = 0; j < columns; j += kLanes)
    for (std::int64_t p = 0; p < depth; p += kLanes) {
      const std::int64_t rows = depth - p < kLanes ? depth - p : kLanes;
      const std::int64_t width = columns - j < kLanes ? columns - j : kLanes;
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const float* from = b.data + (j + i) * b.column + p;
        block[i] = i >= width ? Vec{} : rows == kLanes ? load(from) : load_part(from, rows);
      }
      transpose_block(block);
      for (std::int64_t i = 0; i < rows; ++i) store(panel + (p + i) * kColumns + j, block[i]);
    }
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, StridedMatrix a, StridedMatrix b, float* c, std::int64_t ldc, const float* bias,
          bool accumulate) {
  alignas(64) float panel[kDepth * kColumns];
  for (std::int64_t p = 0; p == 0 || p < k; p += kDepth) {
    const std::int64_t depth = k - p < kDepth ? k - p : kDepth;
    for (std::int64_t j = 0; j < n; j += kColumns) {
      const std::int64_t columns = n - j < kColumns ? n - j : kColumns;
      pack_panel({b.data + p * b.row + j * b.column, b.row, b.column}, depth, columns, panel);
      const std::int64_t vectors = (columns + kLanes - 1) / kLanes;
      const Start start = p > 0 || accumulate ? Start::add : bias ? Start::bias : Start::zero;
      const TileArguments t{depth, {a.data + p * a.column, a.row, a.column}, panel, c + j, ldc, bias ? bias + j : nullptr,
                            start, columns - (vectors - 1) * kLanes};
      if (vectors == 1) rows_of_tiles<1>(m, t);
      if (vectors == 2) rows_of_tiles<2>(m, t);
      if constexpr (kMaxVectors == 4) {
        if (vectors == 3) rows_of_tiles<3>(m, t);
        if (vectors == 4) rows_of_tiles<4>(m, t);
      }
    }
  }
}
