// Files that processes map and extend, for lib.ipc.shmem: `file` is the FILE * that FFI makes of a Lua file.
// Failures are printed on standard error and returned as NULL or false.

#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

bool shmem_unmap(void *at, size_t bytes)
{
	if (munmap(at, bytes) == 0)
		return true;
	perror("shmem: munmap");
	return false;
}

char *shmem_attach(void *file, size_t bytes)
{
	void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);

	if (at != MAP_FAILED)
		return at;
	perror("shmem: mmap");
	return 0;
}

// Unmaps `old`, if it is mapped, and maps the file with its new length, perhaps elsewhere.
char *shmem_grow(void *file, void *old, size_t old_bytes, size_t bytes)
{
	if (old && !shmem_unmap(old, old_bytes))
		return 0;
	if (ftruncate(fileno(file), (off_t)bytes) == 0)
		return shmem_attach(file, bytes);
	perror("shmem: ftruncate");
	return 0;
}
