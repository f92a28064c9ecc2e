// For the programs that mpirun starts, under ThreadSanitizer, which does not see how MPI synchronizes: Open MPI is not
// instrumented. What it does itself (it copies messages into our buffers on whatever thread calls it) is not checked; all
// that Weft does around it is. Of oneDNN: see tests/execute/onednn_under_tsan.cc.
#if defined(__SANITIZE_THREAD__)

extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libmpi.so\n"
         "called_from_lib:libopen-pal.so\n"
         "called_from_lib:libopen-rte.so\n"
         "called_from_lib:mca_allocator_bucket.so\n"
         "called_from_lib:mca_btl_tcp.so\n"
         "called_from_lib:mca_btl_vader.so\n"
         "called_from_lib:mca_pml_ob1.so\n"
         "called_from_lib:libdnnl.so\n";
}

// MPI_Finalize unloads its plug-ins, and ThreadSanitizer ends a program that unloads a library named above.
extern "C" int dlclose(void*) { return 0; }

#endif
